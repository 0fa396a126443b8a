use haulout_core::fixtures::{host_ref, name, vm_ref};

use super::*;

fn host(n: usize) -> Entity {
    Entity::Host(host_ref(n))
}

fn vm(n: usize) -> Entity {
    Entity::Vm(vm_ref(n))
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Shows a text of node 1 on its VM.
fn show(values: &mut AttributeValues, text: &str, is_change: bool, now: Instant) {
    values.show(&name(1), text.to_owned(), vec![vm(1)], is_change, now);
}

/// Takes what is due and sets it.
fn set(values: &mut AttributeValues, now: Instant) -> Option<String> {
    let (entity, value) = values.take(now)?;
    values.set(&entity, value.clone(), now);
    Some(value)
}

#[test]
fn newer_value_replaces_one_that_was_not_set_yet() {
    let (mut values, now) = (AttributeValues::default(), Instant::now());
    for text in ["a", "b", "c"] {
        show(&mut values, text, true, now);
    }
    assert_eq!(set(&mut values, now).as_deref(), Some("c"));
    assert_eq!(set(&mut values, now + seconds(60)), None);
    // The same value is not set again.
    show(&mut values, "c", true, now + seconds(60));
    assert_eq!(set(&mut values, now + seconds(60)), None);
}

#[test]
fn values_of_one_object_have_pauses_between_them() {
    let (mut values, mut now) = (AttributeValues::default(), Instant::now());
    show(&mut values, "0", true, now);
    assert!(set(&mut values, now).is_some());
    for (text, pause) in [
        ("1", 3),
        ("2", 6),
        ("3", 12),
        ("4", 24),
        ("5", 48),
        ("6", 60),
        ("7", 60),
    ] {
        show(&mut values, text, false, now);
        assert_eq!(values.next_due(), Some(now + seconds(pause)), "{text}");
        now += seconds(pause);
        assert_eq!(set(&mut values, now).as_deref(), Some(text));
    }
    // A change of phase does not wait so long.
    show(&mut values, "phase", true, now);
    assert_eq!(values.next_due(), Some(now + PAUSE_MIN));
}

#[test]
fn end_clears_the_value_however_often_it_fails() {
    let (mut values, mut now) = (AttributeValues::default(), Instant::now());
    show(&mut values, "a", true, now);
    assert!(set(&mut values, now).is_some());
    values.hide(&name(1), Vec::new(), now);
    for _ in 0..100 {
        now += PAUSE_MAX;
        let (entity, value) = values.take(now).unwrap();
        assert_eq!(value, "");
        values.failed(&entity, now);
    }
    now += PAUSE_MAX;
    assert_eq!(set(&mut values, now).as_deref(), Some(""));
    assert_eq!(values.next_due(), None);
    // An object without a value is forgotten.
    values.show(&name(2), "b".to_owned(), vec![vm(2)], true, now + PAUSE_MAX);
    assert_eq!(values.objects.len(), 1);
}

#[test]
fn end_clears_what_an_earlier_process_may_have_set() {
    let (mut values, now) = (AttributeValues::default(), Instant::now());
    values.hide(&name(1), vec![vm(1)], now);
    assert_eq!(set(&mut values, now).as_deref(), Some(""));
}

#[test]
fn host_shows_each_of_its_nodes() {
    let (mut values, now) = (AttributeValues::default(), Instant::now());
    for n in [1, 2] {
        values.show(&name(n), format!("text {n}"), vec![host(1)], true, now);
    }
    assert_eq!(set(&mut values, now).as_deref(), Some("text 1 | text 2"));
    values.hide(&name(1), Vec::new(), now);
    let now = now + PAUSE_MIN;
    assert_eq!(set(&mut values, now).as_deref(), Some("text 2"));
}

#[test]
fn episode_on_another_host_clears_the_first_one() {
    let (mut values, now) = (AttributeValues::default(), Instant::now());
    values.show(&name(1), "a".to_owned(), vec![host(1)], true, now);
    assert!(set(&mut values, now).is_some());
    values.show(&name(1), "a".to_owned(), vec![host(2)], true, now);
    let later = now + PAUSE_MIN;
    let both = [values.take(later).unwrap(), values.take(later).unwrap()];
    assert!(both.contains(&(host(1), String::new())), "{both:?}");
    assert!(both.contains(&(host(2), "a".to_owned())), "{both:?}");
}

#[test]
fn value_has_at_most_200_characters() {
    let (mut values, now) = (AttributeValues::default(), Instant::now());
    show(&mut values, &"ä".repeat(200), true, now);
    assert_eq!(set(&mut values, now).unwrap().chars().count(), 200);
    let now = now + PAUSE_MIN;
    show(&mut values, &"ä".repeat(201), true, now);
    let value = set(&mut values, now).unwrap();
    assert_eq!(value.chars().count(), 200);
    assert!(value.ends_with('…'));
}

#[test]
fn refused_kind_is_left_out_for_an_hour() {
    let (mut values, now) = (AttributeValues::default(), Instant::now());
    show(&mut values, "a", true, now);
    let (entity, _) = values.take(now).unwrap();
    values.refused(&entity, now);
    show(&mut values, "b", true, now);
    values.show(&name(2), "b".to_owned(), vec![vm(2), host(2)], true, now);
    let hour = now + LEFT_OUT_FOR;
    assert_eq!(values.take(now + PAUSE_MAX), Some((host(2), "b".to_owned())));
    assert_eq!(values.take(now + PAUSE_MAX), None);
    assert_eq!(values.next_due(), Some(hour));
    assert_eq!(values.take(hour), Some((vm(1), "b".to_owned())));
}

#[test]
fn value_that_was_found_is_cleared_unless_it_is_shown_again() {
    let (mut values, now) = (AttributeValues::default(), Instant::now());
    values.found(vm(1), "old".to_owned(), now);
    assert_eq!(set(&mut values, now).as_deref(), Some(""));
    values.show(&name(2), "text".to_owned(), vec![vm(2)], true, now);
    values.found(vm(2), "old".to_owned(), now);
    assert_eq!(set(&mut values, now).as_deref(), Some("text"));
}

#[test]
fn value_that_changes_while_it_is_set_is_set_again() {
    let (mut values, now) = (AttributeValues::default(), Instant::now());
    show(&mut values, "a", true, now);
    let (entity, value) = values.take(now).unwrap();
    values.hide(&name(1), Vec::new(), now);
    assert_eq!(values.take(now), None);
    values.set(&entity, value, now);
    assert_eq!(set(&mut values, now + PAUSE_MIN).as_deref(), Some(""));
}
