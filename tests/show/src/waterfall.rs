//! Draws a trace in a terminal: one row for each span, in tree order, with a bar on a common time scale.

use std::collections::BTreeSet;

use crate::traces::Span;

/// The width of a row.
const WIDTH: usize = 100;
/// The width of a name with its indentation.
const NAME: usize = 26;
/// The width of a duration.
const TOOK: usize = 11;
const BAR: usize = WIDTH - NAME - TOOK - 6;

/// The rows of the spans of one trace. A span without a known parent has no indentation.
pub(crate) fn draw(spans: &[Span]) -> Vec<String> {
    let (Some(begin), Some(end)) = (
        spans.iter().map(|span| span.start).min(),
        spans.iter().map(|span| span.end).max(),
    ) else {
        return Vec::new();
    };
    let scale = Scale { begin, end };
    let mut rows = vec![row("span", &axis(&scale), "took")];
    let mut seen = BTreeSet::new();
    let is_top = |span: &&Span| {
        let parent = span.parent.as_ref();
        parent.is_none_or(|parent| !spans.iter().any(|it| it.id == *parent))
    };
    for top in in_time(spans.iter().filter(is_top)) {
        branch(top, 0, spans, &scale, &mut seen, &mut rows);
    }
    rows
}

/// The row of `span` and those of its children. A cycle is cut.
fn branch<'s>(
    span: &'s Span,
    depth: usize,
    spans: &'s [Span],
    scale: &Scale,
    seen: &mut BTreeSet<&'s str>,
    rows: &mut Vec<String>,
) {
    if !seen.insert(&span.id) {
        return;
    }
    let name = format!("{}{}", "  ".repeat(depth), span.name);
    rows.push(row(&name, &scale.bar(span), &seconds(span.start, span.end)));
    let children = spans.iter().filter(|it| it.parent.as_ref() == Some(&span.id));
    for child in in_time(children) {
        branch(child, depth + 1, spans, scale, seen, rows);
    }
}

fn in_time<'s>(spans: impl Iterator<Item = &'s Span>) -> Vec<&'s Span> {
    let mut spans: Vec<&Span> = spans.collect();
    spans.sort_by_key(|span| (span.start, span.end));
    spans
}

/// The start and end of the trace in microseconds.
struct Scale {
    begin: u64,
    end: u64,
}

impl Scale {
    /// The column of a time.
    fn column(&self, at: u64) -> usize {
        let whole = u128::from(self.end - self.begin).max(1);
        let part = u128::from(at.saturating_sub(self.begin)) * BAR as u128 / whole;
        usize::try_from(part).unwrap_or(BAR).min(BAR)
    }

    /// A moment is a stroke; a duration has at least one block.
    fn bar(&self, span: &Span) -> String {
        let from = self.column(span.start).min(BAR - 1);
        let to = self.column(span.end).max(from + 1);
        let bar = if span.start == span.end {
            "|".to_owned()
        } else {
            "█".repeat(to - from)
        };
        format!("{}{bar}", " ".repeat(from))
    }
}

/// The ends of the time axis.
fn axis(scale: &Scale) -> String {
    let end = seconds(scale.begin, scale.end);
    format!("0 s{:>1$}", end, BAR - 3)
}

fn seconds(from: u64, to: u64) -> String {
    let millis = to.saturating_sub(from).div_ceil(1_000);
    format!("{}.{:03} s", millis / 1_000, millis % 1_000)
}

fn row(name: &str, bar: &str, took: &str) -> String {
    format!("  {:<NAME$}  {bar:<BAR$}  {took:>TOOK$}", cut(name))
}

/// A name of at most [`NAME`] characters; a longer one ends in an ellipsis.
fn cut(name: &str) -> String {
    if name.chars().count() <= NAME {
        return name.to_owned();
    }
    let kept: String = name.chars().take(NAME - 1).collect();
    format!("{kept}…")
}

#[cfg(test)]
mod tests {
    use crate::traces::Span;

    use super::{BAR, NAME, WIDTH, draw};

    fn span(id: &str, parent: Option<&str>, name: &str, from_ms: u64, to_ms: u64) -> Span {
        Span {
            id: id.to_owned(),
            parent: parent.map(str::to_owned),
            name: name.to_owned(),
            start: 1_000_000 + from_ms * 1_000,
            end: 1_000_000 + to_ms * 1_000,
        }
    }

    #[test]
    fn spans_are_in_tree_order_with_bars_on_a_common_time_scale() {
        let rows = draw(&[
            span("e", Some("a"), "wait host exit", 5_000, 10_000),
            span("c", Some("a"), "drain", 0, 5_000),
            span("d", Some("c"), "cordon", 0, 10),
            span("a", None, "maintenance", 0, 10_000),
            span("b", Some("a"), "announce", 0, 0),
        ]);
        let names: Vec<&str> = rows.iter().map(|row| row[2..2 + NAME].trim_end()).collect();
        assert_eq!(
            names,
            [
                "span",
                "maintenance",
                "  announce",
                "  drain",
                "    cordon",
                "  wait host exit"
            ]
        );
        let bars: Vec<String> = rows
            .iter()
            .map(|row| row.chars().skip(NAME + 4).take(BAR).collect())
            .collect();
        let blocks = |bar: &str| bar.chars().filter(|c| *c == '█').count();
        assert_eq!(bars[1], "█".repeat(BAR));
        assert_eq!(bars[2].trim_end(), "|");
        assert_eq!(blocks(&bars[3]), BAR / 2);
        assert_eq!(blocks(&bars[4]), 1, "what took time is seen");
        assert_eq!(bars[5].find('█'), Some(BAR / 2), "it begins where the drain ends");
        assert!(bars[5].ends_with('█'));
        let ends: Vec<&str> = rows[1..]
            .iter()
            .map(|row| row.rsplit("  ").next().unwrap().trim())
            .collect();
        assert_eq!(ends, ["10.000 s", "0.000 s", "5.000 s", "0.010 s", "5.000 s"]);
        for row in &rows {
            assert_eq!(row.chars().count(), WIDTH, "{row:?}");
        }
    }

    #[test]
    fn a_long_name_is_cut_and_an_odd_trace_is_drawn_all_the_same() {
        assert!(draw(&[]).is_empty());
        let long = "x".repeat(80);
        let rows = draw(&[
            span("a", Some("nobody"), &long, 0, 0),
            // A cycle: neither span is a root, and the drawing ends.
            span("b", Some("c"), "b", 0, 1),
            span("c", Some("b"), "c", 0, 1),
        ]);
        assert_eq!(rows.len(), 2, "{rows:#?}");
        assert!(
            rows[1].contains('…') && rows[1].chars().count() == WIDTH,
            "{rows:#?}"
        );
    }
}
