//! The layout of a timeline. Horizontal positions are in percent, so that it fits any screen; vertical
//! ones in pixels, so that text keeps its size.

use jiff::Timestamp;

use super::view::{ShownState, Timeline, TimelineSpan};
use haulout_core::status::Took;

/// Height of a row: name, bar and gap.
const ROW: usize = 44;

/// Vertical position of the name, and of the bar.
const NAME: usize = 14;
const BAR: usize = 20;
/// Height of a bar; the hatching needs it.
pub(super) const BAR_HEIGHT: usize = 16;

/// Height of the axis.
const AXIS: usize = 24;

/// Minimum width of a span, in percent.
const WIDTH_MIN: f64 = 0.5;

/// Maximum number of marks on the axis; five fit on a phone.
const MARKS: i64 = 5;

/// Distances between marks, in seconds.
const STEPS: [i64; 19] = [
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 604_800,
];

/// Maximum length of a name; the tables have the full name.
const NAME_CHARS: usize = 48;

/// A timeline, laid out for SVG.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TimelinePicture {
    /// The length of the timeline.
    pub(super) period: String,
    pub(super) height: usize,
    /// The end of the rows.
    pub(super) axis_y: usize,
    pub(super) rows: Vec<PictureRow>,
    pub(super) marks: Vec<PictureMark>,
    /// The states in the picture.
    pub(super) legend: Vec<ShownState>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct PictureRow {
    pub(super) name: String,
    pub(super) name_y: usize,
    pub(super) y: usize,
    pub(super) bars: Vec<PictureBar>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct PictureBar {
    pub(super) state: ShownState,
    /// In percent, as `width`.
    pub(super) x: String,
    pub(super) width: String,
    /// The tooltip.
    pub(super) title: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PictureMark {
    /// In percent.
    pub(super) x: String,
    pub(super) text: String,
    /// The `text-anchor`: marks near the edges are aligned inward.
    pub(super) anchor: &'static str,
}

/// Lays out `timeline`.
pub(super) fn layout(timeline: &Timeline) -> TimelinePicture {
    let mut legend: Vec<ShownState> = Vec::new();
    let mut rows = Vec::new();
    for (index, row) in timeline.rows.iter().enumerate() {
        let top = index * ROW;
        let bars = row.spans.iter().filter_map(|span| bar(span, timeline));
        let bars: Vec<PictureBar> = bars.collect();
        legend.extend(bars.iter().map(|bar| bar.state));
        rows.push(PictureRow {
            name: short(&row.name),
            name_y: top + NAME,
            y: top + BAR,
            bars,
        });
    }
    let axis_y = rows.len() * ROW;
    let in_picture = |state: &ShownState| legend.contains(state);
    TimelinePicture {
        period: Took(timeline.to.duration_since(timeline.from)).to_string(),
        height: axis_y + AXIS,
        axis_y,
        rows,
        marks: marks(timeline.from, timeline.to),
        legend: ShownState::all().filter(in_picture).collect(),
    }
}

fn short(name: &str) -> String {
    if name.chars().count() <= NAME_CHARS {
        return name.to_owned();
    }
    name.chars().take(NAME_CHARS).chain(['\u{2026}']).collect()
}

/// The visible part of a span, if any.
fn bar(span: &TimelineSpan, timeline: &Timeline) -> Option<PictureBar> {
    let to = span.to.unwrap_or(timeline.to);
    if to < timeline.from || span.from > timeline.to {
        return None;
    }
    let from = share(span.from, timeline.from, timeline.to);
    let width = (share(to, timeline.from, timeline.to) - from).max(WIDTH_MIN);
    let took = Took(to.duration_since(span.from));
    let title = match span.to {
        Some(_) => format!("{}, {took}", span.label),
        None => format!("{}, {took} so far", span.label),
    };
    let x = from.min(100.0 - width);
    Some(PictureBar {
        state: span.state,
        x: percent(x),
        width: percent(width),
        title,
    })
}

/// The position of a time, in percent.
fn share(at: Timestamp, from: Timestamp, to: Timestamp) -> f64 {
    let all = to.duration_since(from).as_secs_f64();
    let past = at.duration_since(from).as_secs_f64();
    if all <= 0.0 {
        return 0.0;
    }
    (past / all * 100.0).clamp(0.0, 100.0)
}

fn percent(share: f64) -> String {
    format!("{share:.2}%")
}

/// Marks at round times.
fn marks(from: Timestamp, to: Timestamp) -> Vec<PictureMark> {
    let length = to.duration_since(from).as_secs().max(1);
    let fits = |step: &&i64| length / **step < MARKS;
    let step = STEPS.iter().find(fits).copied().unwrap_or(604_800);
    let shown = if step < 60 { "%H:%M:%S" } else { "%H:%M" };
    let first = from.as_second().div_euclid(step) + 1;
    (0..MARKS)
        .filter_map(|index| Timestamp::from_second((first + index) * step).ok())
        .take_while(|at| *at <= to)
        .map(|at| {
            let x = share(at, from, to);
            let anchor = if x < 8.0 {
                "start"
            } else if x > 92.0 {
                "end"
            } else {
                "middle"
            };
            PictureMark {
                x: percent(x),
                text: at.strftime(shown).to_string(),
                anchor,
            }
        })
        .collect()
}
