//! A breadth-first search of all reachable states.
//!
//! This is not stateright. A state holds an [`Inventory`](haulout_core::inventory::Inventory), which has neither a hash nor an equality,
//! and stateright finds the steps of a counterexample again by the hashes of states. Here each state keeps the step that led to it, so
//! a counterexample is exact even where the hash leaves something out. stateright would also add twenty crates, one of them a web
//! server.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fmt::{self, Write as _};
use std::hash::{DefaultHasher, Hasher as _};

use crate::actions::{Action, phase_of};
use crate::world::State;
use crate::{Controls, Limits};

pub struct Found {
    pub states: usize,
    pub steps: usize,
    pub rests: usize,
    pub parked: usize,
    pub phases: BTreeMap<String, usize>,
    pub violation: Option<Violation>,
}

pub struct Violation {
    pub what: String,
    pub trace: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}:", self.what)?;
        self.trace.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            states,
            steps,
            rests,
            parked,
            phases,
            ..
        } = self;
        write!(
            f,
            "{states} states, {steps} steps, {rests} continuations to rest ({parked} parked); {phases:?}"
        )
    }
}

/// The field that a number belongs to.
#[derive(Clone, Copy, Default)]
enum Field {
    /// Milliseconds.
    Elapsed,
    Version,
    #[default]
    Other,
}

/// The hash of a state. Fractions of seconds, revisions, versions and ids are left out, because they only tell the paths to a state apart.
#[derive(Default)]
struct Fingerprint {
    text: Vec<u8>,
    field: Field,
    is_fraction: bool,
}

impl fmt::Write for Fingerprint {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let field = match part {
            ": " | "(" => self.field,
            "Elapsed" => Field::Elapsed,
            "revision" | "resource_version" => Field::Version,
            _ => Field::Other,
        };
        let field = std::mem::replace(&mut self.field, field);
        if part.bytes().all(|byte| byte.is_ascii_digit()) {
            match field {
                Field::Elapsed => {
                    let seconds = part.get(..part.len().saturating_sub(3));
                    self.text.extend(seconds.unwrap_or_default().as_bytes());
                    return Ok(());
                }
                Field::Version => return Ok(()),
                Field::Other => {}
            }
        }
        let is_id = part.len() >= 32 && part.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
        if is_id {
            return Ok(());
        }
        for byte in part.bytes() {
            self.is_fraction = byte == b'.' || (self.is_fraction && byte.is_ascii_digit());
            if !self.is_fraction {
                self.text.push(byte);
            }
        }
        Ok(())
    }
}

fn fingerprint(state: &State) -> u64 {
    let mut all = Fingerprint::default();
    write!(all, "{state:?}").expect("a hash takes everything");
    let mut hasher = DefaultHasher::new();
    hasher.write(&all.text);
    hasher.finish()
}

/// The step before a step, and its words.
struct Step {
    before: Option<usize>,
    action: Action,
}

/// Searches all states within `limits`.
pub fn search(limits: Limits, controls: Controls) -> Found {
    let mut found = Found {
        states: 1,
        steps: 0,
        rests: 0,
        parked: 0,
        phases: BTreeMap::new(),
        violation: None,
    };
    let first = State::new(limits, controls);
    let mut seen = HashSet::from([fingerprint(&first)]);
    let mut path: Vec<Step> = Vec::new();
    let mut open: VecDeque<(Option<usize>, State)> = VecDeque::from([(None, first)]);
    'search: while let Some((before, state)) = open.pop_front() {
        let actions = state.actions();
        *found.phases.entry(phase_of(&state.nodes[0])).or_default() += 1;
        if State::is_quiet(&actions) {
            found.rests += 1;
            let mut trace = Vec::new();
            match state.clone().comes_to_rest(&mut trace) {
                Ok(is_parked) => found.parked += usize::from(is_parked),
                Err(what) => {
                    let mut all = replay(&path, before, limits, controls);
                    all.push("         from here there are no more faults:".to_owned());
                    all.extend(trace);
                    found.violation = Some(Violation { what, trace: all });
                    break 'search;
                }
            }
        }
        for action in actions {
            found.steps += 1;
            match state.after(action) {
                Ok(next) => {
                    if seen.insert(fingerprint(&next)) {
                        path.push(Step { before, action });
                        open.push_back((Some(path.len() - 1), next));
                    }
                }
                Err(what) => {
                    let mut trace = replay(&path, before, limits, controls);
                    trace.push(state.words(action));
                    found.violation = Some(Violation { what, trace });
                    break 'search;
                }
            }
        }
    }
    found.states = seen.len();
    found
}

/// The steps to a state, in words.
fn replay(path: &[Step], last: Option<usize>, limits: Limits, controls: Controls) -> Vec<String> {
    let mut actions = Vec::new();
    let mut at = last;
    while let Some(index) = at {
        actions.push(path[index].action);
        at = path[index].before;
    }
    let mut state = State::new(limits, controls);
    let mut lines = Vec::new();
    for action in actions.into_iter().rev() {
        lines.push(state.words(action));
        state = state.after(action).expect("it was possible before");
    }
    lines
}
