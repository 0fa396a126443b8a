//! The pages: each is a template in `templates/status/`, which escapes all that it shows.

use askama::Template;
use jiff::Timestamp;

use super::timeline_picture::{self, BAR_HEIGHT, TimelinePicture};
use super::view::{EpisodePage, Frame, NodePage, Overview, PageLeadership, ShownState, TimelineSpan};
use super::words;
use crate::status::{HostKind, PhaseKind};

/// The looks of all pages.
pub(super) const STYLE: &str = include_str!("../../../templates/status/style.css");

/// What makes pages update themselves.
pub(super) const SCRIPT: &str = include_str!("../../../templates/status/script.js");

#[derive(Template)]
#[template(path = "status/overview.html")]
struct OverviewHtml<'a> {
    frame: &'a Frame,
    /// The way from this page to the overview; relative, so that a proxy may put the pages below any path.
    root: &'static str,
    json: &'static str,
    page: &'a Overview,
    picture: TimelinePicture,
    period: String,
}

#[derive(Template)]
#[template(path = "status/node.html")]
struct NodeHtml<'a> {
    frame: &'a Frame,
    root: &'static str,
    json: String,
    page: &'a NodePage,
}

#[derive(Template)]
#[template(path = "status/episode.html")]
struct EpisodeHtml<'a> {
    frame: &'a Frame,
    root: &'static str,
    json: String,
    page: &'a EpisodePage,
    picture: TimelinePicture,
    period: String,
}

#[derive(Template)]
#[template(path = "status/missing.html")]
struct MissingHtml<'a> {
    what: &'a str,
}

/// The overview.
pub(super) fn overview(page: &Overview) -> Result<String, askama::Error> {
    let html = OverviewHtml {
        frame: &page.frame,
        root: "./",
        json: "api/v1/overview",
        page,
        picture: timeline_picture::draw(&page.timeline),
        period: timeline_picture::length(&page.timeline),
    };
    html.render()
}

/// One node's page.
pub(super) fn node(page: &NodePage) -> Result<String, askama::Error> {
    let html = NodeHtml {
        frame: &page.frame,
        root: "../",
        json: format!("api/v1/nodes/{}", segment(&page.row.name)),
        page,
    };
    html.render()
}

/// One episode's page.
pub(super) fn episode(page: &EpisodePage) -> Result<String, askama::Error> {
    let html = EpisodeHtml {
        frame: &page.frame,
        root: "../",
        json: format!("api/v1/episodes/{}", segment(&page.row.id)),
        page,
        picture: timeline_picture::draw(&page.timeline),
        period: timeline_picture::length(&page.timeline),
    };
    html.render()
}

/// The page for what nobody knows.
pub(super) fn missing(what: &str) -> Result<String, askama::Error> {
    MissingHtml { what }.render()
}

/// A name as one segment of a path: a slash or a dot-dot in it must not lead elsewhere.
fn segment(name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'~');
    let is_dots = matches!(name, "." | "..");
    name.bytes()
        .map(|byte| match byte {
            b'.' if !is_dots => ".".to_owned(),
            byte if is_plain(byte) => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        })
        .collect()
}

/// A moment, as the templates write it.
struct ShownTime {
    machine: String,
    hour: String,
    ago: String,
}

impl ShownTime {
    fn of(at: &Timestamp, frame: &Frame) -> Self {
        Self {
            machine: format!("{at:.3}"),
            hour: words::hour(*at, frame.now),
            ago: words::ago(*at, frame.now),
        }
    }
}

/// How long a phase of `page` took, or has taken so far.
fn took(span: &TimelineSpan, page: &EpisodePage) -> String {
    let until = span.to.or(page.row.ended_at).unwrap_or(page.frame.now);
    words::length(until.duration_since(span.from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stays_one_segment_of_a_path() {
        assert_eq!(segment("gpu-1.example"), "gpu-1.example");
        assert_eq!(segment("../x?y#z"), "..%2Fx%3Fy%23z");
        assert_eq!(segment(".."), "%2E%2E");
        assert_eq!(segment("<é>"), "%3C%C3%A9%3E");
    }
}
