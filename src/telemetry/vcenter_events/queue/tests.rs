use haulout_core::fixtures::{host_ref, name, vm_ref};

use super::*;

fn text(kind: TextKind, text: &str) -> LoggedText {
    LoggedText {
        text: text.to_owned(),
        on: vec![Entity::Host(host_ref(1)), Entity::Vm(vm_ref(1))],
        kind,
        tries: 0,
    }
}

fn change(text_: &str) -> LoggedText {
    text(TextKind::Change, text_)
}

fn wait(text_: &str) -> LoggedText {
    text(TextKind::Wait, text_)
}

fn end(text_: &str) -> LoggedText {
    text(TextKind::End, text_)
}

/// A queue with a clock.
struct Queued {
    queue: PostQueue,
    now: Instant,
}

impl Queued {
    fn new() -> Self {
        Self {
            queue: PostQueue::default(),
            now: Instant::now(),
        }
    }

    fn push(&mut self, posts: impl IntoIterator<Item = LoggedText>) {
        for post in posts {
            self.queue.push(&name(1), post, self.now);
        }
    }

    /// Sends what is due, with success. Returns its text, and the seconds it had to wait.
    fn send(&mut self) -> Option<(String, u64)> {
        let due = self.queue.next_due()?;
        let waited = due.saturating_duration_since(self.now);
        self.now = self.now.max(due);
        let (node, mut post) = self.queue.take(self.now)?;
        post.on.clear();
        let text = post.text.clone();
        self.queue.sent(&node, post, self.now);
        Some((text, waited.as_secs()))
    }

    /// Tries to send what is due. Returns the seconds it had to wait.
    fn fail(&mut self) -> Option<u64> {
        let due = self.queue.next_due()?;
        let waited = due.saturating_duration_since(self.now);
        self.now = self.now.max(due);
        let (node, post) = self.queue.take(self.now)?;
        self.queue.sent(&node, post, self.now);
        Some(waited.as_secs())
    }
}

fn sent(text: &str, after: u64) -> Option<(String, u64)> {
    Some((text.to_owned(), after))
}

#[test]
fn newest_text_replaces_one_that_waits() {
    let mut queued = Queued::new();
    queued.push([change("cordoned"), wait("3 pods"), wait("1 pod")]);
    assert_eq!(queued.send(), sent("1 pod", 0));
    assert_eq!(queued.send(), None);
}

#[test]
fn two_posts_of_one_node_are_seconds_apart() {
    let mut queued = Queued::new();
    queued.push([change("a")]);
    assert_eq!(queued.send(), sent("a", 0));
    queued.push([change("b")]);
    assert_eq!(queued.send(), sent("b", PAUSE_MIN.as_secs()));
    queued.now += PAUSE_MAX;
    queued.push([change("c")]);
    assert_eq!(queued.send(), sent("c", 0));
}

#[test]
fn waits_in_one_phase_are_posted_ever_less_often() {
    let mut queued = Queued::new();
    queued.push([change("draining")]);
    assert_eq!(queued.send(), sent("draining", 0));
    for pause in [3, 3, 6, 12, 24, 48, 60, 60] {
        queued.push([wait("w")]);
        assert_eq!(queued.send(), sent("w", pause));
    }
    // A change of phase does not wait for that.
    queued.push([change("drained")]);
    assert_eq!(queued.send(), sent("drained", 3));
}

#[test]
fn end_is_kept_and_posted_before_the_next_episode() {
    let mut queued = Queued::new();
    queued.push([wait("w"), end("first"), change("again"), wait("v"), end("second")]);
    queued.push([change("third")]);
    assert_eq!(queued.send(), sent("first", 0));
    assert_eq!(queued.send(), sent("second", 3));
    assert_eq!(queued.send(), sent("third", 3));
    assert_eq!(queued.queue.take_lost(), 0);
}

#[test]
fn ends_that_wait_are_bounded_and_the_oldest_is_counted_as_lost() {
    let mut queued = Queued::new();
    queued.push((0..=ENDS_MAX).map(|number| end(&number.to_string())));
    queued.push([wait("newest")]);
    assert_eq!(queued.queue.take_lost(), 1);
    assert_eq!(queued.queue.take_lost(), 0, "counted once");
    for number in 1..=ENDS_MAX {
        assert_eq!(queued.send().map(|(text, _)| text), Some(number.to_string()));
    }
    assert_eq!(queued.send().map(|(text, _)| text), Some("newest".to_owned()));
}

#[test]
fn end_that_fails_is_tried_again_within_a_bound() {
    let mut queued = Queued::new();
    queued.push([end("end")]);
    let pauses: Vec<u64> = std::iter::from_fn(|| queued.fail()).collect();
    assert_eq!(pauses.len(), usize::try_from(TRIES_MAX).unwrap());
    assert_eq!(pauses[..8], [0, 3, 6, 12, 24, 48, 60, 60]);
    assert_eq!(queued.queue.take_lost(), 1);
}

#[test]
fn failed_text_gives_way_to_a_newer_one_and_an_end_does_not() {
    for (post, expected) in [(wait("w"), vec!["newer"]), (end("e"), vec!["e", "newer"])] {
        let mut queued = Queued::new();
        queued.push([post]);
        let (node, post) = queued.queue.take(queued.now).unwrap();
        queued.push([change("newer")]);
        assert_eq!(queued.queue.take(queued.now), None, "one at a time");
        queued.queue.sent(&node, post, queued.now);
        let texts: Vec<String> = std::iter::from_fn(|| queued.send())
            .map(|(text, _)| text)
            .collect();
        assert_eq!(texts, expected);
        assert_eq!(queued.queue.take_lost(), 0);
    }
}

#[test]
fn text_is_sent_again_only_to_the_objects_that_do_not_have_it() {
    let mut queued = Queued::new();
    queued.push([end("end")]);
    let (node, mut post) = queued.queue.take(queued.now).unwrap();
    post.on.remove(0);
    queued.queue.sent(&node, post, queued.now);
    queued.now += PAUSE_MAX;
    let (_, post) = queued.queue.take(queued.now).unwrap();
    assert_eq!(post.on, [Entity::Vm(vm_ref(1))]);
}

#[test]
fn node_without_texts_is_forgotten() {
    let mut queued = Queued::new();
    queued.push([end("end")]);
    assert_eq!(queued.send(), sent("end", 0));
    queued.now += PAUSE_MAX;
    queued.queue.push(&name(2), change("other"), queued.now);
    assert_eq!(queued.queue.nodes.len(), 1);
}
