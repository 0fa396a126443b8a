//! Sanitizes text from outside before logs, events and terminals show it.

use std::borrow::Cow;

/// Limit in characters. vCenter's limit for names is 80; fault messages are under 1,000.
pub(crate) const LONGEST: usize = 1_000;

/// Replaces control characters and bidirectional controls, and truncates overlong text.
///
/// Line breaks and tabs become spaces. The key in `session[key]` is removed, because some servers
/// accept it as the session cookie. Never applied to references that are sent back to vCenter.
pub(crate) fn for_people(text: &str) -> String {
    let text = without_session_keys(text.trim());
    let mut clean = String::with_capacity(text.len().min(LONGEST));
    for (count, character) in text.chars().enumerate() {
        if count == LONGEST {
            clean.push('…');
            break;
        }
        clean.push(match character {
            '\n' | '\r' | '\t' => ' ',
            c if c.is_control() || steers(c) => char::REPLACEMENT_CHARACTER,
            c => c,
        });
    }
    clean
}

/// Removes the key of each `session[key]`. A key without its end is removed with all that follows.
fn without_session_keys(text: &str) -> Cow<'_, str> {
    const BEFORE: &str = "session[";
    // Fast path: few texts have a bracket.
    if !text.contains('[') || !text.contains(BEFORE) {
        return Cow::Borrowed(text);
    }
    let mut without = String::new();
    let mut rest = text;
    while let Some((before, from)) = rest.split_once(BEFORE) {
        without.push_str(before);
        without.push_str(BEFORE);
        without.push('…');
        let Some((_, after)) = from.split_once(']') else {
            return Cow::Owned(without);
        };
        without.push(']');
        rest = after;
    }
    without.push_str(rest);
    Cow::Owned(without)
}

/// A sanitized inventory name. vCenter escapes `/`, `\` and `%` as `%2f`, `%5c` and `%25`
/// (`ManagedEntity.name` in the API reference).
pub(crate) fn inventory_name(raw: &str) -> String {
    for_people(&unescaped(raw))
}

/// Decodes the three escapes of inventory names.
pub(crate) fn unescaped(raw: &str) -> String {
    let mut plain = String::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(at) = rest.find('%') {
        let (before, from) = rest.split_at(at);
        plain.push_str(before);
        let (character, length) = match from.get(..3) {
            Some(code) if code.eq_ignore_ascii_case("%2f") => ('/', 3),
            Some(code) if code.eq_ignore_ascii_case("%5c") => ('\\', 3),
            Some("%25") => ('%', 3),
            _ => ('%', 1),
        };
        plain.push(character);
        rest = from.get(length..).unwrap_or_default();
    }
    plain.push_str(rest);
    plain
}

/// Bidirectional controls, zero-width characters and the byte order mark: invisible, and able to make
/// names look alike.
fn steers(character: char) -> bool {
    matches!(character,
        '\u{061c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sanitized_text_is_printable_and_bounded() {
        assert_eq!(
            for_people("gpu\u{1b}[2J\u{202e}-1\nx"),
            "gpu\u{fffd}[2J\u{fffd}-1 x"
        );
        assert_eq!(for_people(&"x".repeat(1 << 20)).chars().count(), LONGEST + 1);
    }

    #[test]
    fn session_keys_are_removed_from_text_of_any_length() {
        assert_eq!(
            for_people(" a session[52a0] b session[] c "),
            "a session[…] b session[…] c"
        );
        assert_eq!(for_people("of session[52a0-"), "of session[…");
        // As many as the largest text has: a recursion for each would end the process.
        let many = "session[]".repeat(crate::xml::MAX_TEXT / "session[]".len());
        assert_eq!(for_people(&many).chars().count(), LONGEST + 1);
    }

    #[test]
    fn inventory_names_lose_their_three_escapes_once() {
        assert_eq!(inventory_name("a%2fb%5cc%252f%"), "a/b\\c%2f%");
        assert_eq!(unescaped("100%é"), "100%é");
    }
}
