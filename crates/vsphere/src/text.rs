//! Sanitizes text from outside before logs, events and terminals show it.

/// Limit in characters. vCenter's limit for names is 80; fault messages are under 1,000.
const LONGEST: usize = 1_000;

/// Replaces control characters and bidirectional controls, and truncates overlong text.
///
/// Line breaks and tabs become spaces. The key in `session[key]` is removed, because some servers
/// accept it as the session cookie. Never applied to references that are sent back to vCenter.
pub(crate) fn for_people(text: &str) -> String {
    // Fast path: few texts have a bracket.
    if text.contains('[')
        && let Some((before, rest)) = text.split_once("session[")
        && let Some((_, after)) = rest.split_once(']')
    {
        return format!("{}session[…]{}", for_people(before), for_people(after));
    }
    let mut clean = String::with_capacity(text.len().min(LONGEST));
    for (count, character) in text.trim().chars().enumerate() {
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
    fn inventory_names_lose_their_three_escapes_once() {
        assert_eq!(inventory_name("a%2fb%5cc%252f%"), "a/b\\c%2f%");
        assert_eq!(unescaped("100%é"), "100%é");
    }
}
