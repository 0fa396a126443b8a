use super::*;

const MINUTE: i64 = 60;

fn window(text: &str) -> Window {
    text.parse().unwrap()
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

#[test]
fn window_is_written_as_it_is_read() {
    for (text, written) in [
        ("22:00-04:00", "22:00-04:00 UTC"),
        (
            "mon-fri 22:00-04:00 europe/berlin",
            "Mon,Tue,Wed,Thu,Fri 22:00-04:00 Europe/Berlin",
        ),
        ("Sat-Mon,Wed 00:00-00:00", "Mon,Wed,Sat,Sun 00:00-00:00 UTC"),
        ("Sun-Sat 09:30-17:45 Asia/Kolkata", "09:30-17:45 Asia/Kolkata"),
        ("  Sat   06:00-07:00  ", "Sat 06:00-07:00 UTC"),
    ] {
        assert_eq!(window(text).to_string(), written);
        assert_eq!(window(written), window(text));
    }
}

#[test]
fn window_of_an_unknown_form_day_time_or_zone_is_refused() {
    for (text, says) in [
        ("", "is not a window"),
        ("Mon", "is not a window"),
        ("22:00", "is not a window"),
        ("Mon 22:00-04:00 UTC more", "is not a window"),
        ("Mo 22:00-04:00", "\"Mo\" is not a day"),
        ("Mon- 22:00-04:00", "\"\" is not a day"),
        ("Mon,,Tue 22:00-04:00", "\"\" is not a day"),
        ("24:00-04:00", "\"24:00\" is not a time"),
        ("22:60-04:00", "\"22:60\" is not a time"),
        ("2:00-04:00", "\"2:00\" is not a time"),
        ("22:00-+4:00", "\"+4:00\" is not a time"),
        ("22:00-04:00:00", "\"04:00:00\" is not a time"),
        (
            "22:00-04:00 Europe/Berlln",
            "\"Europe/Berlln\" is not a time zone",
        ),
        ("22:00-04:00 Etc/Unknown", "\"Etc/Unknown\" is not a time zone"),
        ("22:00-04:00 ../../etc/localtime", "is not a time zone"),
    ] {
        let error = text.parse::<Window>().unwrap_err().to_string();
        assert!(error.contains(says), "{text}: {error}");
    }
}

#[test]
fn refused_value_is_shown_short_and_plain() {
    let error = Window::new::<&str>(&[], "00:00", "00:00", &format!("a\n\"{}", "b".repeat(1000)));
    let text = error.unwrap_err().to_string();
    assert!(text.starts_with("\"a??bbb") && text.len() < 200, "{text}");
}

#[test]
fn window_is_open_from_its_start_until_before_its_end() {
    // 2026-06-01 is a Monday.
    for (text, time, open) in [
        ("Mon 10:00-12:00", "2026-06-01T09:59:59.999Z", false),
        ("Mon 10:00-12:00", "2026-06-01T10:00:00Z", true),
        ("Mon 10:00-12:00", "2026-06-01T11:59:59.999Z", true),
        ("Mon 10:00-12:00", "2026-06-01T12:00:00Z", false),
        ("Mon 10:00-12:00", "2026-06-02T11:00:00Z", false),
        ("Mon 10:00-12:00 Europe/Berlin", "2026-06-01T08:00:00Z", true),
        ("Mon 10:00-12:00 Europe/Berlin", "2026-06-01T11:00:00Z", false),
        // The day is the one on which it starts.
        ("Sun 22:00-04:00", "2026-06-01T03:59:59Z", true),
        ("Sun 22:00-04:00", "2026-06-01T04:00:00Z", false),
        ("Sun 22:00-04:00", "2026-06-01T23:00:00Z", false),
        ("Mon 22:00-04:00", "2026-06-01T03:00:00Z", false),
        ("Mon 22:00-04:00", "2026-06-01T23:00:00Z", true),
        // An equal end is on the next day.
        ("Mon 08:00-08:00", "2026-06-02T07:59:59Z", true),
        ("Mon 08:00-08:00", "2026-06-02T08:00:00Z", false),
        ("Sat,Sun 00:00-00:00", "2026-06-01T00:00:00Z", false),
        ("Sat,Sun 00:00-00:00", "2026-05-31T23:59:59Z", true),
    ] {
        assert_eq!(window(text).is_open(at(time)), open, "{text} at {time}");
    }
}

#[test]
fn next_opening_and_closing_pass_midnight_week_and_year() {
    for (text, from, opens, closes) in [
        (
            "Mon 10:00-12:00",
            "2026-06-01T12:00:00Z",
            "2026-06-08T10:00:00Z",
            Some("2026-06-01T12:00:00Z"),
        ),
        (
            "Sat 22:00-04:00 Europe/Berlin",
            "2026-06-06T21:30:00Z",
            "2026-06-06T21:30:00Z",
            Some("2026-06-07T02:00:00Z"),
        ),
        (
            "Thu 22:00-04:00",
            "2026-12-31T23:30:00Z",
            "2026-12-31T23:30:00Z",
            Some("2027-01-01T04:00:00Z"),
        ),
        // Adjacent days: it stays open.
        (
            "Sat,Sun 00:00-00:00",
            "2026-06-05T12:00:00Z",
            "2026-06-06T00:00:00Z",
            Some("2026-06-05T12:00:00Z"),
        ),
        (
            "Sat,Sun 00:00-00:00",
            "2026-06-06T00:00:00Z",
            "2026-06-06T00:00:00Z",
            Some("2026-06-08T00:00:00Z"),
        ),
        (
            "00:00-00:00",
            "2026-06-06T00:00:00Z",
            "2026-06-06T00:00:00Z",
            None,
        ),
    ] {
        assert_eq!(window(text).open_at(at(from)), at(opens), "{text} from {from}");
        assert_eq!(
            window(text).closed_at(at(from)),
            closes.map(at),
            "{text} from {from}"
        );
    }
}

#[test]
fn clock_changes_skip_shorten_and_repeat_a_window() {
    // Berlin: 2026-03-29 02:00 is followed by 03:00; 2026-10-25 03:00 is followed by 02:00.
    for (text, from, opens) in [
        // Skipped as a whole: the next day, or the next week.
        (
            "02:15-02:45 Europe/Berlin",
            "2026-03-29T00:00:00Z",
            "2026-03-30T00:15:00Z",
        ),
        (
            "Sun 02:15-02:45 Europe/Berlin",
            "2026-03-29T00:00:00Z",
            "2026-04-05T00:15:00Z",
        ),
        // Its start is skipped: it opens when the clock is set.
        (
            "02:15-03:30 Europe/Berlin",
            "2026-03-29T00:00:00Z",
            "2026-03-29T01:00:00Z",
        ),
        // Repeated, also from the middle.
        (
            "02:15-02:45 Europe/Berlin",
            "2026-10-25T00:45:00Z",
            "2026-10-25T01:15:00Z",
        ),
        (
            "01:30-02:30 Europe/Berlin",
            "2026-10-25T00:30:00Z",
            "2026-10-25T01:00:00Z",
        ),
    ] {
        assert_eq!(window(text).open_at(at(from)), at(opens), "{text} from {from}");
    }
    // Its end is skipped: it closes when the clock is set.
    let window = window("01:00-02:30 Europe/Berlin");
    let closes = window.closed_at(at("2026-03-29T00:00:00Z"));
    assert_eq!(closes, Some(at("2026-03-29T01:00:00Z")));
}

/// Compares the next opening and closing with a search by quarter hours around clock changes, of which one skips a whole day.
#[test]
fn next_opening_and_closing_are_those_of_a_search_by_quarter_hours() {
    let zones = [
        ("UTC", "2026-06-03T00:00:00Z"),
        ("Asia/Kolkata", "2026-06-03T00:00:00Z"),
        ("Europe/Berlin", "2026-03-28T00:00:00Z"),
        ("Europe/Berlin", "2026-10-24T00:00:00Z"),
        ("America/New_York", "2026-11-01T00:00:00Z"),
        ("Australia/Lord_Howe", "2026-04-04T00:00:00Z"),
        ("Australia/Lord_Howe", "2026-10-03T00:00:00Z"),
        ("Pacific/Apia", "2011-12-29T00:00:00Z"),
    ];
    let days = ["", "Sun ", "Fri,Sun "];
    let times = ["00:00", "01:30", "02:15", "03:00", "22:00"];
    for (zone, begin) in zones {
        for (day, start, end) in days
            .iter()
            .flat_map(|day| times.map(|start| (day, start)))
            .flat_map(|(day, start)| times.map(|end| (day, start, end)))
        {
            let text = format!("{day}{start}-{end} {zone}");
            let window = window(&text);
            let quarter =
                |number: i64| Timestamp::from_second(at(begin).as_second() + number * 15 * MINUTE).unwrap();
            let mut next = [None, None];
            // Two days are compared, and 15 more are searched.
            for number in (0..17 * 96).rev() {
                let now = quarter(number);
                next[usize::from(window.is_open(now))] = Some(now);
                if number < 2 * 96 {
                    assert_eq!(Some(window.open_at(now)), next[1], "{text} from {now}");
                    let is_daily = start == end && day.is_empty();
                    let closes = window.closed_at(now).filter(|_| !is_daily);
                    assert_eq!(closes, next[0], "{text} from {now}");
                }
            }
        }
    }
}

#[test]
fn window_beyond_the_calendar_stays_closed() {
    let window = window("Mon 10:00-10:01");
    assert_eq!(window.open_at(Timestamp::MAX), Timestamp::MAX);
    assert_eq!(window.closed_at(Timestamp::MAX), Some(Timestamp::MAX));
    assert!(window.open_at(Timestamp::MIN) > Timestamp::MIN);
}
