use super::*;

const HOLD: Duration = Duration::from_secs(180);

fn turn(holder: &str, lasts: Duration, renewed: &str) -> Option<Seen> {
    Some(Seen {
        holder: holder.to_owned(),
        transitions: 0,
        duration: lasts,
        renewed: Some(renewed.to_owned()),
        version: renewed.to_owned(),
    })
}

#[test]
fn a_refusal_is_waited_for_by_all_others_and_counts_from_when_they_saw_it() {
    let began = Instant::now();
    let mut known = Known::default();
    assert_eq!(known.whose("b", began), Whose::Free, "nobody has tried");
    known.read(turn("a", HOLD, "1"), began);
    let left = |known: &Known, after| match known.whose("b", began + after) {
        Whose::Taken { left, .. } => left,
        Whose::Free => Duration::ZERO,
    };
    assert_eq!(left(&known, Duration::ZERO), HOLD);
    assert_eq!(
        known.whose("a", began),
        Whose::Free,
        "who was refused knows better"
    );
    known.read(turn("a", HOLD, "1"), began + Duration::from_secs(170));
    assert_eq!(left(&known, Duration::from_secs(179)), Duration::from_secs(1));
    assert_eq!(known.whose("b", began + HOLD), Whose::Free);

    // Refused once more in the meantime: it counts anew.
    known.read(turn("a", HOLD, "2"), began + Duration::from_secs(175));
    assert_eq!(left(&known, HOLD), Duration::from_secs(175));
    known.read(turn("", RELEASED, "3"), began + HOLD);
    assert_eq!(known.whose("b", began + HOLD), Whose::Free, "it was given back");
}

#[test]
fn nobody_can_lock_all_others_out_for_years() {
    let began = Instant::now();
    let mut known = Known::default();
    known.read(turn("x", Duration::from_secs(1 << 30), "1"), began);
    assert!(matches!(known.whose("b", began), Whose::Taken { .. }));
    assert_eq!(known.whose("b", began + FOREIGN_LEASE_MAX), Whose::Free);
}
