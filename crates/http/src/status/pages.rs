//! HTML pages, from templates in `templates/status/`, which escape all values.

use askama::Template;
use jiff::{SignedDuration, Timestamp};

use super::page_state::PageLeadership;
use super::timeline_picture::{self, BAR_HEIGHT, TimelinePicture};
use super::view::{
    EpisodePage, EpisodeRow, Frame, HostPage, ListFilter, MaintainablePage, NodePage, Overview, PageCount,
    ShownState, TimelineSpan,
};
use haulout_core::status::{HostKind, PhaseKind, Took};

pub(super) const STYLE: &str = include_str!("../../templates/status/style.css");

/// The script that updates open pages.
pub(super) const SCRIPT: &str = include_str!("../../templates/status/script.js");

#[derive(Template)]
#[template(path = "status/overview.html")]
struct OverviewHtml<'a> {
    /// Relative path to the overview, so that a proxy may serve the pages below any path.
    root: &'static str,
    json: &'static str,
    page: &'a Overview,
    node_pager: Option<Pager>,
    host_pager: Option<Pager>,
    picture: TimelinePicture,
}

/// The links to the other pages of a list.
struct Pager {
    earlier: Option<String>,
    later: Option<String>,
    count: PageCount,
}

#[derive(Template)]
#[template(path = "status/node.html")]
struct NodeHtml<'a> {
    root: &'static str,
    json: String,
    page: &'a NodePage,
}

#[derive(Template)]
#[template(path = "status/episode.html")]
struct EpisodeHtml<'a> {
    root: &'static str,
    json: String,
    page: &'a EpisodePage,
    picture: TimelinePicture,
}

#[derive(Template)]
#[template(path = "status/host.html")]
struct HostHtml<'a> {
    root: &'static str,
    json: String,
    page: &'a HostPage,
    picture: TimelinePicture,
}

#[derive(Template)]
#[template(path = "status/maintainable.html")]
struct MaintainableHtml<'a> {
    root: &'static str,
    json: &'static str,
    page: &'a MaintainablePage,
    pager: Option<Pager>,
}

#[derive(Template)]
#[template(path = "status/missing.html")]
struct MissingHtml<'a> {
    what: &'a str,
    root: &'a str,
}

pub(super) fn overview(page: &Overview) -> Result<String, askama::Error> {
    let html = OverviewHtml {
        root: "./",
        json: "api/v1/overview",
        page,
        node_pager: pager(page.node_pages, |nodes| ListFilter {
            nodes,
            ..page.filter.clone()
        }),
        host_pager: pager(page.host_pages, |hosts| ListFilter {
            hosts,
            ..page.filter.clone()
        }),
        picture: timeline_picture::layout(&page.timeline),
    };
    html.render()
}

/// `None` if one page has all.
fn pager(count: PageCount, page: impl Fn(usize) -> ListFilter) -> Option<Pager> {
    let earlier = (count.page > 1).then(|| list_query(&page(count.page.saturating_sub(1))));
    let later = (count.page < count.pages).then(|| list_query(&page(count.page.saturating_add(1))));
    (count.pages > 1).then_some(Pager {
        earlier,
        later,
        count,
    })
}

pub(super) fn node(page: &NodePage) -> Result<String, askama::Error> {
    let html = NodeHtml {
        root: "../",
        json: format!("api/v1/nodes/{}", segment(&page.row.name)),
        page,
    };
    html.render()
}

pub(super) fn episode(page: &EpisodePage) -> Result<String, askama::Error> {
    let html = EpisodeHtml {
        root: "../",
        json: format!("api/v1/episodes/{}", segment(&page.row.id)),
        page,
        picture: timeline_picture::layout(&page.timeline),
    };
    html.render()
}

pub(super) fn host(page: &HostPage) -> Result<String, askama::Error> {
    let html = HostHtml {
        root: "../",
        json: format!("api/v1/hosts/{}", segment(&page.row.name)),
        page,
        picture: timeline_picture::layout(&page.timeline),
    };
    html.render()
}

pub(super) fn maintainable(page: &MaintainablePage) -> Result<String, askama::Error> {
    let html = MaintainableHtml {
        root: "./",
        json: "api/v1/maintainable",
        page,
        pager: pager(page.node_pages, |nodes| ListFilter {
            nodes,
            ..page.filter.clone()
        }),
    };
    html.render()
}

pub(super) fn missing(what: &str, root: &str) -> Result<String, askama::Error> {
    MissingHtml { what, root }.render()
}

/// Escapes a name as one path segment, slashes and dots included.
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

/// A time for the templates.
struct ShownTime {
    machine: String,
    hour: String,
    ago: String,
}

impl ShownTime {
    fn of(at: &Timestamp, frame: &Frame) -> Self {
        Self {
            machine: format!("{at:.3}"),
            hour: hour(*at, frame.now),
            ago: ago(*at, frame.now),
        }
    }
}

/// What an error means for people, which is the innermost cause, and the whole chain if there is more.
fn cause(why: &str) -> (&str, &str) {
    why.rsplit_once(": ").map_or((why, ""), |(_, cause)| (cause, why))
}

/// The query that the lists of the overview are limited by.
fn list_query(filter: &ListFilter) -> String {
    let q: String = form_urlencoded::byte_serialize(filter.q.as_bytes()).collect();
    format!("?q={q}&nodes={}&hosts={}", filter.nodes, filter.hosts)
}

/// How long an episode took, or takes so far.
fn lasted(row: &EpisodeRow, frame: &Frame) -> Option<Took> {
    let until = row.ended_at.unwrap_or(frame.now);
    row.started_at.map(|started| Took(until.duration_since(started)))
}

/// The time until a deadline.
fn ahead(at: &Timestamp, frame: &Frame) -> String {
    let left = at.duration_since(frame.now);
    if left <= SignedDuration::ZERO {
        return "now".to_owned();
    }
    format!("in {}", Took(left))
}

/// The duration of a phase of `page` so far.
fn took(span: &TimelineSpan, page: &EpisodePage) -> Took {
    let until = span.to.or(page.row.ended_at).unwrap_or(page.frame.now);
    Took(until.duration_since(span.from))
}

/// The time in UTC, with the date if it is not today.
fn hour(at: Timestamp, now: Timestamp) -> String {
    let is_today = at.strftime("%F").to_string() == now.strftime("%F").to_string();
    at.strftime(if is_today { "%T UTC" } else { "%F %T UTC" })
        .to_string()
}

/// The time before `now`.
fn ago(at: Timestamp, now: Timestamp) -> String {
    let past = now.duration_since(at);
    if past < SignedDuration::from_secs(1) {
        // vCenter's clock may be ahead of ours.
        return "just now".to_owned();
    }
    format!("{} ago", Took(past))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_has_its_date_if_it_is_not_today() {
        let at = |second: i64| Timestamp::from_second(1_763_464_000 + second).unwrap();
        assert_eq!(hour(at(0), at(1)), "11:06:40 UTC");
        assert_eq!(hour(at(0), at(90_000)), "2025-11-18 11:06:40 UTC");
        assert_eq!(ago(at(5), at(0)), "just now");
        assert_eq!(ago(at(0), at(61)), "1m1s ago");
    }

    #[test]
    fn name_is_one_path_segment() {
        assert_eq!(segment("gpu-1.example"), "gpu-1.example");
        assert_eq!(segment("../x?y#z"), "..%2Fx%3Fy%23z");
        assert_eq!(segment(".."), "%2E%2E");
        assert_eq!(segment("<é>"), "%3C%C3%A9%3E");
    }
}
