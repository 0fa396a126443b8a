//! The shape of the house: who may use whom, what stays pure, and how files begin and are named.
//!
//! The sources are read as tokens, so that a word in a comment or in a text is no use of anything. Test modules may use
//! whatever they like and are left out.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "a test fails by panicking"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A module of `src/` or of `crates/core/src/`, what it may use beside itself, and why that much. Between the crates Cargo holds it.
struct Rights {
    module: &'static str,
    may_use: &'static [&'static str],
}

const EVERYTHING: &str = "*";

/// The table of `docs/development/architecture.md`, which is compared with this one. A module that stands on the right of nobody is only
/// wired in `app`.
const TABLE: &[Rights] = &[
    // Names of things: everybody speaks of them, so they speak of nobody.
    rights("ids", &[]),
    rights("keys", &[]),
    // The fields of a log line: it is handed what the line is about.
    rights("line", &[]),
    rights("fence", &[]),
    // It makes an enum, its list and its names from one declaration.
    rights("named", &[]),
    // Plain types: what both sides tell, and no way to call them.
    rights("facts", &["ids"]),
    // What changes something shows the permit; the Lease opens the gate.
    rights("cluster", &["ids", "keys", "fence"]),
    // The decision knows no side, so that it can be shown every combination of facts.
    rights("maintenance", &["ids", "keys"]),
    // It folds what the two tell into what the decision looks at.
    rights("inventory", &["ids", "keys", "maintenance", "facts"]),
    // It makes of snapshots and transitions what all renderers show.
    rights("status", &["ids", "maintenance"]),
    // An actor changes things by the two methods of `actor::run_effect` only, which it states itself.
    rights("actor", &["ids", "maintenance"]),
    // The one place where effects run.
    rights(
        "executor",
        &[
            "ids",
            "keys",
            "line",
            "fence",
            "actor::run_effect",
            "maintenance",
            "inventory",
            "vsphere",
            "cluster",
            "nodemaintenance::api",
        ],
    ),
    rights("config", &["keys", "maintenance::policy"]),
    // It renders what actors tell, and decides nothing. What it renders for Kubernetes has that half's plain types.
    rights(
        "telemetry",
        &[
            "ids",
            "line",
            "config",
            "maintenance",
            "status",
            "actor::observer",
            "cluster::events",
        ],
    ),
    // Our API object: what is due to be written follows from the statuses and from what the objects say.
    rights(
        "nodemaintenance",
        &[
            "ids",
            "keys",
            "fence",
            "config",
            "maintenance",
            "status",
            "actor::observer",
            "cluster",
        ],
    ),
    // It serves what the metrics write, the health that it states itself, and pages of what actors are shown and tell.
    rights(
        "admin",
        &[
            "ids",
            "maintenance",
            "status",
            "actor::observer",
            "cluster::update",
            "nodemaintenance::objects",
            "telemetry::metrics",
            "telemetry::link",
        ],
    ),
    // Verbs for people read both worlds as the controller does and judge by the same pure code, so that what they say
    // agrees with what then happens. They change nothing but requests and an approval, by their own few verbs of
    // `cluster`.
    rights(
        "cli",
        &[
            "ids",
            "keys",
            "app",
            "config",
            "cluster",
            "vsphere",
            "inventory",
            "maintenance",
            "status",
            "nodemaintenance",
        ],
    ),
    rights("app", &[EVERYTHING]),
    // The door calls what it opens.
    rights("main", &["app", "cli", "config", "telemetry"]),
    // The map says what there is.
    rights("lib", &[]),
];

const fn rights(module: &'static str, may_use: &'static [&'static str]) -> Rights {
    Rights { module, may_use }
}

/// Modules in which nothing waits, nothing is read but arguments, and the time is one of them.
const PURE: [&str; 3] = ["maintenance", "inventory", "status"];

/// Words that have no place in a pure module, whatever they are part of.
const IMPURE_WORDS: [&str; 8] = [
    "async",
    "await",
    "tokio",
    "futures",
    "tracing",
    "Instant",
    "SystemTime",
    "rand",
];

/// What of the standard library reaches outside the program.
const IMPURE_STD: [&str; 6] = ["env", "fs", "io", "net", "process", "thread"];

/// Names that say nothing about what is inside, so that in time everything is.
const EMPTY_NAMES: [&str; 9] = [
    "util", "utils", "common", "helper", "helpers", "manager", "misc", "shared", "base",
];

#[test]
fn modules_use_what_the_table_allows_and_nothing_else() {
    let mut used: BTreeSet<(String, &str)> = BTreeSet::new();
    let mut wrong = Vec::new();
    for file in sources_of_src().iter().filter(|file| file.top() != "vsphere") {
        let uses = file.uses();
        wrong.extend(foreign(file, &uses));
        for rights in TABLE.iter().filter(|rights| rights.module == file.top()) {
            for allowed in rights.may_use {
                if uses.iter().any(|path| reaches(path, allowed)) {
                    used.insert((file.top(), allowed));
                }
            }
        }
    }
    // A right that nobody uses would let the next change through unseen.
    for rights in TABLE {
        for allowed in rights.may_use.iter().filter(|allowed| **allowed != EVERYTHING) {
            if !used.contains(&(rights.module.to_owned(), *allowed)) {
                wrong.push(format!("{} may use {allowed}, and does not", rights.module));
            }
        }
    }
    nothing(wrong);
}

#[test]
fn the_page_on_the_code_shows_the_same_table() {
    let text = read("docs/development/architecture.md");
    let shown: BTreeMap<String, String> = text
        .lines()
        .filter(|line| line.starts_with("| `src/") || line.starts_with("| `crates/core/src/"))
        .map(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            let module = cells[0].split('`').nth(1).unwrap();
            let module = module.trim_start_matches("crates/core/");
            let module = module.trim_start_matches("src/").trim_end_matches('/');
            (
                module.trim_end_matches(".rs").to_owned(),
                cells[2].replace('`', ""),
            )
        })
        .collect();
    let held: BTreeMap<String, String> = TABLE
        .iter()
        .map(|rights| {
            let may_use = match rights.may_use {
                [] => "nothing".to_owned(),
                [EVERYTHING] => "everything".to_owned(),
                some => some.join(", "),
            };
            (rights.module.to_owned(), may_use)
        })
        .collect();
    assert_eq!(shown, held);
}

#[test]
fn the_decision_and_the_fold_are_pure() {
    let pure = |file: &Source| PURE.contains(&file.top().as_str());
    nothing(sources_of_src().iter().filter(|file| pure(file)).flat_map(impure));
}

#[test]
fn only_the_election_opens_the_gate() {
    nothing(sources_of_src().iter().flat_map(openers));
}

#[test]
fn every_select_says_in_which_order_it_looks() {
    nothing(sources_of_src().iter().flat_map(unordered_selects));
}

#[test]
fn our_domain_name_stands_in_keys_only() {
    let elsewhere = |file: &Source| file.top() != "keys";
    nothing(
        sources_of_src()
            .iter()
            .filter(|file| elsewhere(file))
            .flat_map(domains),
    );
}

#[test]
fn every_file_begins_with_its_purpose_and_has_a_name_that_says_something() {
    let mut wrong = Vec::new();
    for file in all_sources() {
        wrong.extend(unnamed(&file.path));
        wrong.extend(purposeless(&file));
    }
    nothing(wrong);
}

#[test]
fn no_banned_crate_is_in_the_graph() {
    let deny = read("deny.toml");
    let bans = deny.split("\ndeny = [").nth(1).unwrap();
    let banned: Vec<&str> = bans
        .lines()
        .take_while(|line| *line != "]")
        .filter_map(|line| {
            let (_, rest) = line.split_once("{ crate = \"")?;
            assert!(rest.contains("reason = "), "a ban without its reason: {line}");
            Some(rest.split_once('"')?.0)
        })
        .collect();
    assert!(banned.len() >= 6, "deny.toml bans {banned:?}");
    let lock = read("Cargo.lock");
    let present = |name: &&&str| lock.contains(&format!("name = \"{name}\"\n"));
    assert_eq!(
        banned.iter().filter(present).collect::<Vec<_>>(),
        [] as [&&str; 0]
    );
}

// What follows are the rules, each as a function from a source to what is wrong with it, and tests that they can fail.

fn foreign(file: &Source, uses: &[Vec<String>]) -> Vec<String> {
    let top = file.top();
    let Some(rights) = TABLE.iter().find(|rights| rights.module == top) else {
        return vec![format!("{}: the table does not know the module {top}", file.path)];
    };
    uses.iter()
        .filter(|path| path.first().is_some_and(|first| *first != top))
        .filter(|path| {
            !rights
                .may_use
                .iter()
                .any(|allowed| *allowed == EVERYTHING || reaches(path, allowed))
        })
        .map(|path| format!("{}: {top} may not use {}", file.path, path.join("::")))
        .collect()
}

/// Whether `path` is `allowed` or lies in it.
fn reaches(path: &[String], allowed: &str) -> bool {
    let mut path = path.iter();
    allowed
        .split("::")
        .all(|part| path.next().is_some_and(|it| it == part))
}

fn impure(file: &Source) -> Vec<String> {
    let words = file
        .idents()
        .filter(|word| IMPURE_WORDS.contains(word))
        .map(str::to_owned);
    let std = file
        .paths_from("std")
        .into_iter()
        .filter(|path| {
            path.first()
                .is_some_and(|part| IMPURE_STD.contains(&part.as_str()))
        })
        .map(|path| format!("std::{}", path.join("::")));
    let clocks = file
        .tokens
        .windows(2)
        .filter(|pair| pair[0].is("::") && pair[1].is("now"))
        .map(|_| "a clock".to_owned());
    words
        .chain(std)
        .chain(clocks)
        .map(|what| format!("{}: {what} in a pure module", file.path))
        .collect()
}

fn unordered_selects(file: &Source) -> Vec<String> {
    file.tokens
        .windows(4)
        .filter(|it| it[0].is("select") && it[1].is("!") && !it[3].is("biased"))
        .map(|_| format!("{}: a select! that is not biased", file.path))
        .collect()
}

/// Who makes a gate or opens one beside `app`, which wires it, and the Lease.
fn openers(file: &Source) -> Vec<String> {
    const OPENING: [&str; 3] = ["without_election", "of_a_replica", "Term"];
    if file.path == "src/app.rs" || file.path == "src/cluster/lease.rs" || file.top() == "fence" {
        return Vec::new();
    }
    file.idents()
        .filter(|word| OPENING.contains(word))
        .map(|word| format!("{}: {word} opens the gate", file.path))
        .collect()
}

fn domains(file: &Source) -> Vec<String> {
    let ours = haulout::keys::DEFAULT_PREFIX;
    // The part that is registered: nobody may build the rest of it elsewhere.
    let domain = ours
        .rsplitn(3, '.')
        .take(2)
        .collect::<Vec<_>>()
        .into_iter()
        .rev()
        .collect::<Vec<_>>()
        .join(".");
    file.tokens
        .iter()
        .filter(|token| matches!(token, Token::Text(text) if text.contains(&domain)))
        .map(|_| format!("{}: {domain} belongs into src/keys.rs", file.path))
        .collect()
}

fn unnamed(path: &str) -> Vec<String> {
    let name = Path::new(path).file_stem().unwrap().to_str().unwrap();
    let is_empty = name.split('_').any(|part| EMPTY_NAMES.contains(&part)) || name == "mod";
    is_empty
        .then(|| format!("{path}: a name that says nothing"))
        .into_iter()
        .collect()
}

/// A file of tests is about the file that it belongs to, and says so by its name.
fn purposeless(file: &Source) -> Vec<String> {
    if file.path.ends_with("/tests.rs") {
        return Vec::new();
    }
    let paragraph: Vec<&str> = file
        .text
        .lines()
        .map_while(|line| line.strip_prefix("//! "))
        .collect();
    let is_sentence = paragraph
        .join(" ")
        .trim_end()
        .ends_with(|end: char| ".:?".contains(end));
    (paragraph.is_empty() || !is_sentence)
        .then(|| format!("{}: does not begin with a `//!` sentence", file.path))
        .into_iter()
        .collect()
}

#[test]
fn the_table_is_held_against_every_way_to_write_a_path() {
    let wrong = |path: &str, text: &str| {
        let file = Source::new(path, text);
        foreign(&file, &file.uses())
    };
    let cases = [
        "use crate::cluster::watch::run;",
        "use crate::{ids::HostRef, cluster::watch};",
        "use crate::{\n    ids,\n    world::{self, World as W},\n};",
        "fn f() { let x = crate::cluster::node::patch(); }",
        "use super::cluster;",
        "pub use crate::keys::Keys;",
    ];
    for case in cases {
        assert!(!wrong("crates/core/src/facts.rs", case).is_empty(), "{case}");
    }
    assert_eq!(
        wrong(
            "crates/core/src/facts/vsphere/host.rs",
            "use super::super::super::keys::Keys;"
        ),
        ["crates/core/src/facts/vsphere/host.rs: facts may not use keys::Keys"]
    );
    assert_eq!(
        wrong(
            "crates/core/src/inventory/binding.rs",
            "use crate::{facts::vsphere, actor::observer};"
        ),
        ["crates/core/src/inventory/binding.rs: inventory may not use actor::observer"]
    );
    assert_eq!(
        wrong("crates/core/src/inventory.rs", "use crate::world;").len(),
        1
    );
    assert_eq!(wrong("src/main.rs", "use haulout::world::World;").len(), 1);
    assert_eq!(wrong("src/elsewhere.rs", "").len(), 1);
}

#[test]
fn words_texts_and_tests_are_no_uses() {
    let innocent = r####"
        //! crate::cluster
        /* crate::cluster /* nested */ crate::world */
        use crate::ids::{HostRef, VmRef};
        use super::super::ids;
        use super::feed;
        pub(crate) fn f<'a>(quote: char) -> &'a str {
            let _ = ('"', '\'', b'"', "\" crate::cluster", r#"" crate::world"#);
            "crate::cluster::watch"
        }
        #[cfg(test)]
        #[allow(missing_docs)]
        mod tests {
            use crate::cluster::watch;
            fn g() { if true {} }
        }
        #[cfg(test)]
        use crate::world::World;
    "####;
    let file = Source::new("src/cluster/watch.rs", innocent);
    assert_eq!(foreign(&file, &file.uses()), [] as [String; 0]);
    assert_eq!(file.uses().len(), 4, "{:?}", file.uses());
    let declared = Source::new("src/cluster.rs", "mod a;\n#[cfg(test)]\nmod stand_in;\n");
    assert_eq!(declared.test_files, ["src/cluster/stand_in.rs"]);
}

#[test]
fn impurity_is_found() {
    let cases = [
        "async fn f() {}",
        "fn f() { g().await }",
        "use tokio::sync::watch;",
        "use std::time::{Duration, Instant};",
        "use std::{fmt, fs};",
        "use std::net::TcpStream;",
        "fn f() { jiff::Timestamp::now(); }",
        "fn f() { tracing::info!(\"said\"); }",
    ];
    for case in cases {
        let found = impure(&Source::new("src/maintenance/x.rs", case));
        assert!(!found.is_empty(), "{case}");
    }
    let innocent = "// Instant::now\nuse std::{fmt, time::Duration};\nfn awaiting(now: Timestamp) { x(now) }";
    assert_eq!(
        impure(&Source::new("src/maintenance/x.rs", innocent)),
        [] as [String; 0]
    );
}

#[test]
fn the_other_rules_can_fail() {
    let found =
        |rule: fn(&Source) -> Vec<String>, text: &str| rule(&Source::new("src/actor/x.rs", text)).len();
    let blind = "tokio::select! { a = b() => {} }";
    let ordered = "tokio::select! { biased; a = b() => {} }";
    assert_eq!(
        (found(unordered_selects, blind), found(unordered_selects, ordered)),
        (1, 0)
    );
    assert_eq!(
        (
            found(openers, "fn f() { Gate::without_election(); }"),
            found(openers, "fn f(gate: &Gate) { gate.pass(Errand::Effect); }")
        ),
        (1, 0)
    );
    let domain = format!("const K: &str = {:?};", haulout::keys::DEFAULT_PREFIX);
    assert_eq!(
        (found(domains, &domain), found(domains, &format!("// {domain}"))),
        (1, 0)
    );
    for (text, wrong) in [
        ("//! Does one thing.\n\nuse a;", 0),
        (
            "//! Does one thing, which takes\n//! two lines to say.\n//!\n//! More.",
            0,
        ),
        ("use a;", 1),
        ("//! no sentence", 1),
    ] {
        assert_eq!(found(purposeless, text), wrong, "{text}");
    }
    for (path, wrong) in [
        ("src/a/mod.rs", 1),
        ("src/util.rs", 1),
        ("src/a/string_helpers.rs", 1),
        ("src/a/node.rs", 0),
    ] {
        assert_eq!(unnamed(path).len(), wrong, "{path}");
    }
}

/// One file, read as tokens without its test modules.
struct Source {
    path: String,
    text: String,
    tokens: Vec<Token>,
    /// Files that it declares for tests only.
    test_files: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    /// A word, or a sign.
    Plain(String),
    /// The content of a string literal.
    Text(String),
}

impl Token {
    fn is(&self, what: &str) -> bool {
        matches!(self, Self::Plain(plain) if plain == what)
    }

    fn word(&self) -> Option<&str> {
        match self {
            Self::Plain(plain) if plain.starts_with(|first: char| first.is_alphabetic() || first == '_') => {
                Some(plain)
            }
            Self::Plain(_) | Self::Text(_) => None,
        }
    }
}

impl Source {
    fn new(path: &str, text: &str) -> Self {
        let (tokens, test_modules) = without_tests(&tokens(text));
        let folder = path.trim_end_matches(".rs");
        let folder = folder.strip_suffix("/lib").unwrap_or(folder);
        Self {
            path: path.to_owned(),
            text: text.to_owned(),
            tokens,
            test_files: test_modules
                .iter()
                .map(|name| format!("{folder}/{name}.rs"))
                .collect(),
        }
    }

    /// The file's place in the crate, as `["vsphere", "updates", "feed"]`.
    fn module(&self) -> Vec<String> {
        self.path
            .replacen("crates/vsphere/src/", "vsphere/", 1)
            .trim_start_matches("crates/core/")
            .trim_start_matches("src/")
            .trim_end_matches(".rs")
            .split('/')
            .map(str::to_owned)
            .collect()
    }

    fn top(&self) -> String {
        self.module().remove(0)
    }

    fn idents(&self) -> impl Iterator<Item = &str> {
        self.tokens.iter().filter_map(Token::word)
    }

    /// All paths that begin with `root`, without it.
    fn paths_from(&self, root: &str) -> Vec<Vec<String>> {
        let mut found = Vec::new();
        for (index, token) in self.tokens.iter().enumerate() {
            let is_continued = self.tokens.get(index + 1).is_some_and(|next| next.is("::"));
            let continues = index > 0 && self.tokens[index - 1].is("::");
            if token.is(root) && is_continued && !continues {
                branches(&self.tokens[index + 2..], &[], &mut found);
            }
        }
        found
    }

    /// All paths of the crate that the file uses, from the crate's root.
    fn uses(&self) -> Vec<Vec<String>> {
        let mut uses = self.paths_from("crate");
        if self.top() == "main" {
            uses.extend(self.paths_from("haulout"));
        }
        for path in self.paths_from("super") {
            let ups = 1 + path.iter().take_while(|part| *part == "super").count();
            let mut absolute = self.module();
            absolute.truncate(absolute.len().saturating_sub(ups));
            absolute.extend(path.into_iter().skip(ups - 1));
            uses.push(absolute);
        }
        uses
    }
}

/// Reads a path, or the tree of a `use`, that goes on with `tokens` after `prefix`. Gives how many tokens it took.
fn branches(tokens: &[Token], prefix: &[String], found: &mut Vec<Vec<String>>) -> usize {
    let mut path = prefix.to_vec();
    let mut at = 0;
    loop {
        match tokens.get(at) {
            Some(token) if token.is("{") => {
                at += 1;
                while let Some(token) = tokens.get(at) {
                    if token.is("}") {
                        return at + 1;
                    }
                    let is_branch = token.word().is_some() && !token.is("as");
                    let is_renamed = at > 0 && tokens[at - 1].is("as");
                    if is_branch && !is_renamed {
                        at += branches(&tokens[at..], &path, found);
                    } else {
                        at += 1;
                    }
                }
                return at;
            }
            Some(token) if token.is("self") => at += 1,
            Some(token) if token.word().is_some() => {
                path.extend(token.word().map(str::to_owned));
                at += 1;
            }
            Some(_) | None => {}
        }
        if tokens.get(at).is_some_and(|next| next.is("::")) {
            at += 1;
        } else {
            found.push(path);
            return at;
        }
    }
}

/// Leaves out what is compiled for tests only; gives the modules among it that are files.
fn without_tests(tokens: &[Token]) -> (Vec<Token>, Vec<String>) {
    const MARK: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut kept = Vec::new();
    let mut modules = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let is_marked = MARK
            .iter()
            .enumerate()
            .all(|(offset, sign)| tokens.get(at + offset).is_some_and(|token| token.is(sign)));
        if !is_marked {
            kept.push(tokens[at].clone());
            at += 1;
            continue;
        }
        at += MARK.len();
        let begin = at;
        // The item ends with its first semicolon or closed brace; that of a `use` may be in braces before.
        let mut depth = 0_usize;
        while let Some(token) = tokens.get(at) {
            at += 1;
            let opens = ["{", "(", "["].iter().any(|sign| token.is(sign));
            let closes = ["}", ")", "]"].iter().any(|sign| token.is(sign));
            depth = depth + usize::from(opens) - usize::from(closes);
            let is_use = tokens[begin].is("use");
            if depth == 0 && (token.is(";") || (token.is("}") && !is_use)) {
                break;
            }
        }
        let item = &tokens[begin..at];
        if item.last().is_some_and(|last| last.is(";"))
            && let Some(name) = item
                .windows(2)
                .find_map(|pair| pair[0].is("mod").then(|| pair[1].word()).flatten())
        {
            modules.push(name.to_owned());
        }
    }
    (kept, modules)
}

fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let at = |index: usize| chars.get(index).copied().unwrap_or('\0');
    let mut tokens = Vec::new();
    let mut i = 0;
    while i < chars.len() {
        match (at(i), at(i + 1)) {
            ('/', '/') => i += chars[i..].iter().take_while(|c| **c != '\n').count(),
            ('/', '*') => {
                let mut depth = 0;
                loop {
                    match (at(i), at(i + 1)) {
                        ('/', '*') => (depth, i) = (depth + 1, i + 2),
                        ('*', '/') => (depth, i) = (depth - 1, i + 2),
                        _ => i += 1,
                    }
                    if depth == 0 || i >= chars.len() {
                        break;
                    }
                }
            }
            ('r', '"' | '#') if raw_string(&chars[i..]).is_some() => {
                let (content, length) = raw_string(&chars[i..]).unwrap();
                tokens.push(Token::Text(content));
                i += length;
            }
            ('"', _) => {
                let begin = i + 1;
                i = begin;
                while i < chars.len() && at(i) != '"' {
                    i += if at(i) == '\\' { 2 } else { 1 };
                }
                tokens.push(Token::Text(chars[begin..i.min(chars.len())].iter().collect()));
                i += 1;
            }
            // A character, or a lifetime: the quote of a lifetime is never closed.
            ('\'', '\\') => {
                i += 3;
                while i < chars.len() && at(i) != '\'' {
                    i += 1;
                }
                i += 1;
            }
            ('\'', _) => i += if at(i + 2) == '\'' { 3 } else { 1 },
            (':', ':') => {
                tokens.push(Token::Plain("::".to_owned()));
                i += 2;
            }
            (c, _) if c.is_alphanumeric() || c == '_' => {
                let word: String = chars[i..]
                    .iter()
                    .take_while(|c| c.is_alphanumeric() || **c == '_')
                    .collect();
                i += word.chars().count();
                tokens.push(Token::Plain(word));
            }
            (c, _) => {
                if !c.is_whitespace() {
                    tokens.push(Token::Plain(c.to_string()));
                }
                i += 1;
            }
        }
    }
    tokens
}

/// The content of a raw string that begins here, and how long it is with everything around.
fn raw_string(chars: &[char]) -> Option<(String, usize)> {
    let hashes = chars[1..].iter().take_while(|c| **c == '#').count();
    if chars.get(1 + hashes) != Some(&'"') {
        return None;
    }
    let begin = 2 + hashes;
    let end: Vec<char> = std::iter::once('"')
        .chain(std::iter::repeat_n('#', hashes))
        .collect();
    let length = chars[begin..]
        .windows(end.len())
        .position(|window| *window == end)?;
    let content = chars[begin..begin + length].iter().collect();
    Some((content, begin + length + end.len()))
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// All of the program but what is compiled for tests only.
/// The crates beside the program; `crates/vsphere/fuzz` is a workspace of its own.
const CRATES: [&str; 2] = ["crates/core/src", "crates/vsphere/src"];

fn sources_of_src() -> Vec<Source> {
    let mut sources = sources_in("src");
    for folder in CRATES {
        sources.extend(sources_in(folder));
    }
    let for_tests: BTreeSet<String> = sources.iter().flat_map(|file| file.test_files.clone()).collect();
    sources.retain(|file| !for_tests.contains(&file.path));
    assert!(sources.len() > 40, "only {} files were found", sources.len());
    sources
}

fn all_sources() -> Vec<Source> {
    let mut sources = sources_in("src");
    for folder in CRATES {
        sources.extend(sources_in(folder));
    }
    sources.extend(sources_in("tests"));
    sources
}

fn sources_in(folder: &str) -> Vec<Source> {
    let mut paths = Vec::new();
    collect(&root().join(folder), &mut paths);
    paths.sort();
    paths
        .iter()
        .map(|path| {
            let path = path.strip_prefix(root()).unwrap().to_str().unwrap();
            Source::new(path, &read(path))
        })
        .collect()
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, paths);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            paths.push(path);
        }
    }
}

fn nothing(wrong: impl IntoIterator<Item = String>) {
    let wrong: Vec<String> = wrong.into_iter().collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
