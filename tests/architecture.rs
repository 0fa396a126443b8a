//! What Cargo cannot enforce: that the modules of a crate form no circles, the order of every `select!`, the one file with our
//! domain name, unique names of types, and what tests need of the lab.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking; Rust's syntax is not our enum"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::Visit;
use syn::{Attribute, UseTree};

/// The crates with modules of their own, by their folders.
const CRATES: &[&str] = &[
    "src",
    "crates/controller/src",
    "crates/core/src",
    "crates/http/src",
    "crates/kubernetes/src",
    "crates/telemetry/src",
    "crates/vsphere/src",
];

/// Names of types that several modules use, because code names them with their module, as in `watch::Settings`.
const SHARED_NAMES: &[&str] = &["Settings"];

/// The lab's modules for what `make test` does without: parts other than cluster and vCenter, and programs of the machine.
const NEIGHBOURS: &[&str] = &[
    "build",
    "cluster_api",
    "jaeger",
    "python",
    "real_kubelet",
    "tools",
    "volumes",
    "zipkin",
];

/// Where `make test-neighbours` has its tests, and the lab.
const OF_NEIGHBOURS: &[&str] = &[
    "tests/scenarios/neighbours",
    "tests/chart",
    "tests/chart.rs",
    "tests/image.rs",
    "tests/release.rs",
    "tests/lab",
];

/// A module and its own parts may use each other.
#[test]
fn modules_of_a_crate_form_no_circles() {
    for source in CRATES {
        let mut files = ModuleGraph::new();
        for file in rust_files(source) {
            let module = module_of(file.strip_prefix(source).unwrap());
            files.insert(module, BTreeSet::new());
        }
        for file in rust_files(source) {
            let module = module_of(file.strip_prefix(source).unwrap());
            let used = used_paths(&read(&file), &module);
            let used = used.iter().filter_map(|path| file_of(path, &files));
            let used: BTreeSet<Vec<String>> = used
                .filter(|used| !used.starts_with(&module) && !module.starts_with(used))
                .collect();
            files.insert(module, used);
        }
        assert_eq!(circles(files.clone()), ModuleGraph::new(), "files of {source}");
        assert_eq!(
            circles(top_modules(&files)),
            ModuleGraph::new(),
            "modules of {source}"
        );
    }
}

#[test]
fn every_select_is_biased() {
    let unbiased = all_sources().filter(|file| has_unbiased_select(&read(file)));
    assert_eq!(unbiased.collect::<Vec<_>>(), [] as [PathBuf; 0]);
}

#[test]
fn only_the_lease_opens_the_fence() {
    let may_open = |file: &PathBuf| {
        let may = [
            "src/app.rs",
            "crates/kubernetes/src/lease.rs",
            "crates/kubernetes/src/fence.rs",
        ];
        may.iter().any(|it| file.ends_with(it))
    };
    let opens = |file: &PathBuf| {
        let opening = ["for_replica", "without_election", "LeadershipWindow"];
        opening.iter().any(|word| has_word(&read(file), word))
    };
    let (openers, others): (Vec<PathBuf>, Vec<PathBuf>) = all_sources().partition(may_open);
    assert_eq!(
        others.into_iter().filter(opens).collect::<Vec<_>>(),
        [] as [PathBuf; 0]
    );
    assert!(openers.iter().all(opens), "{openers:?}");
}

#[test]
fn the_domain_name_stands_in_keys_only() {
    let domain = "vsphere-maintenance.boeye.net";
    let others = all_sources().filter(|file| !file.ends_with("core/src/keys.rs"));
    let named = others.filter(|file| has_text(&read(file), domain));
    assert_eq!(named.collect::<Vec<_>>(), [] as [PathBuf; 0]);
}

#[test]
fn type_names_are_unique() {
    let mut places: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for file in all_sources().chain(rust_files("tests/lab/src")) {
        for name in types(&read(&file)) {
            places.entry(name).or_default().push(file.clone());
        }
    }
    assert!(places.len() > 300, "only {} types were found", places.len());
    for name in SHARED_NAMES {
        let several = places.remove(*name).is_some_and(|files| files.len() > 1);
        assert!(several, "{name} is unique, so it need not be in the list");
    }
    places.retain(|_, files| files.len() > 1);
    assert_eq!(places, BTreeMap::new());
}

#[test]
fn tests_outside_of_neighbours_need_only_cluster_and_vcenter() {
    let others = rust_files("tests").into_iter();
    let others = others.filter(|file| !OF_NEIGHBOURS.iter().any(|it| file.starts_with(it)));
    let needed: Vec<(PathBuf, BTreeSet<String>)> = others
        .map(|file| (file.clone(), neighbours(&read(&file))))
        .filter(|(_, needed)| !needed.is_empty())
        .collect();
    assert_eq!(needed, [], "`make test` builds none of these parts");
}

#[test]
fn programs_whose_unit_tests_make_test_leaves_out_have_none() {
    for program in ["src/main.rs", "tests/sim/src/main.rs"] {
        let text = read(Path::new(program));
        let has_tests = text.contains("#[test]") || text.contains("\nmod ");
        assert!(
            !has_tests,
            "{program} has tests or modules: see CORE in the Makefile"
        );
    }
}

#[test]
fn each_rule_finds_what_it_forbids() {
    let path = |names: &str| names.split("::").map(str::to_owned).collect::<Vec<_>>();
    let uses = |text: &str, module: &str| used_paths(text, &path(module));
    for text in [
        "use crate::cli;",
        "use crate::{ids::HostRef, cli::Cli};",
        "use haulout::cli;",
        "fn f() { let x = crate::cli::run(); }",
        "fn f(x: crate::cli::Cli) {}",
        "fn f() { println!(\"{}\", crate::cli::NAME); }",
        "use super::cli;",
        "mod inner { use super::super::cli; }",
    ] {
        let found = uses(text, "app");
        assert!(found.iter().any(|path| path[0] == "cli"), "{text}: {found:?}");
    }
    assert_eq!(
        uses("use super::super::cli;", "app::wiring"),
        [path("cli")].into()
    );
    assert_eq!(uses("use super::cli;", "app::wiring"), [path("app::cli")].into());
    assert_eq!(uses("use self::cli;", "app"), [path("app::cli")].into());
    for text in [
        "//! crate::cli",
        "const X: &str = \"crate::cli\";",
        "#[cfg(test)] mod tests { use crate::cli; }",
        "use std::cli;",
    ] {
        assert_eq!(uses(text, "app"), BTreeSet::new(), "{text}");
    }
    let graph = |arrows: &[(&str, &str)]| {
        let mut graph = ModuleGraph::new();
        for (from, to) in arrows {
            graph.entry(path(from)).or_default().insert(path(to));
            graph.entry(path(to)).or_default();
        }
        graph
    };
    let circle = graph(&[("a::x", "b::y"), ("b::y", "c"), ("c", "a::x")]);
    let more = [
        ("a::x", "b::y"),
        ("b::y", "c"),
        ("c", "a::x"),
        ("d", "c"),
        ("c", "e"),
    ];
    assert_eq!(circles(graph(&more)), circle);
    let folders = graph(&[("a::x", "b::y"), ("b::z", "a::w")]);
    assert_eq!(circles(folders.clone()), ModuleGraph::new());
    assert_eq!(circles(top_modules(&folders)), graph(&[("a", "b"), ("b", "a")]));
    for text in [
        "use haulout_lab::jaeger::Jaeger;",
        "use haulout_lab::{fixture, tools::{self, Tool}};",
        "fn f() { haulout_lab::build::part(name); }",
        "fn f() { println!(\"{}\", haulout_lab::zipkin::NAME); }",
    ] {
        assert_eq!(neighbours(text).len(), 1, "{text}");
    }
    for text in [
        "use haulout_lab::fixture;",
        "use crate::volumes;",
        "mod inner { use super::volumes; }",
    ] {
        assert_eq!(neighbours(text), BTreeSet::new(), "{text}");
    }
    assert!(has_unbiased_select("fn f() { tokio::select! { () = a => {} } }"));
    assert!(!has_unbiased_select(
        "fn f() { select! { biased; () = a => {} } }"
    ));
    assert_eq!(
        types(
            "struct A; enum B {} mod c { trait C {} } type D = u8; use x::E; fn f() { struct F; }
            trait G { type H; } #[cfg(test)] mod tests { struct I; } named! { pub enum J {} }"
        ),
        ["A", "B", "C", "D", "G", "J"]
    );
    assert!(has_text("const X: &str = \"x.haulout.dev/y\";", "haulout.dev"));
    assert!(has_text("fn f() { format!(\"haulout.dev/{x}\") }", "haulout.dev"));
    assert!(!has_text(
        "// haulout.dev\n#[cfg(test)] const X: &str = \"haulout.dev\";",
        "haulout.dev"
    ));
}

/// Which modules each module uses, by their paths.
type ModuleGraph = BTreeMap<Vec<String>, BTreeSet<Vec<String>>>;

/// The part of a graph that is in circles: without what uses nothing of the rest, and what nothing of the rest uses.
fn circles(mut graph: ModuleGraph) -> ModuleGraph {
    loop {
        let known: BTreeSet<Vec<String>> = graph.keys().cloned().collect();
        let used: BTreeSet<Vec<String>> = graph.values().flatten().cloned().collect();
        graph.retain(|module, uses| {
            uses.retain(|used| known.contains(used));
            !uses.is_empty() && used.contains(module)
        });
        if graph.len() == known.len() {
            return graph;
        }
    }
}

/// The graph of the folders and files at the top.
fn top_modules(graph: &ModuleGraph) -> ModuleGraph {
    let top = |path: &[String]| path.first().cloned().into_iter().collect::<Vec<_>>();
    let mut modules = ModuleGraph::new();
    for (module, used) in graph {
        let module = top(module);
        let used = used.iter().map(|path| top(path)).filter(|used| *used != module);
        modules.entry(module.clone()).or_default().extend(used);
    }
    modules
}

/// The path of the module of a file; empty for the crate's own file.
fn module_of(path: &Path) -> Vec<String> {
    let path = path.with_extension("");
    let names = path.iter().map(|name| name.to_str().unwrap().to_owned());
    let names: Vec<String> = names.collect();
    match names.as_slice() {
        [name] if ["lib", "main"].contains(&&**name) => Vec::new(),
        _ => names,
    }
}

/// The file that a path leads to.
fn file_of(path: &[String], files: &ModuleGraph) -> Option<Vec<String>> {
    let longest = (1..=path.len()).rev().map(|length| path[..length].to_vec());
    longest.into_iter().find(|module| files.contains_key(module))
}

/// The paths in its own crate that a file uses.
fn used_paths(text: &str, module: &[String]) -> BTreeSet<Vec<String>> {
    paths_of(text, &["crate", "haulout"], Some(module.to_vec()))
}

/// The modules of [`NEIGHBOURS`] that a test uses.
fn neighbours(text: &str) -> BTreeSet<String> {
    let used = paths_of(text, &["haulout_lab"], None);
    let used = used.into_iter().filter_map(|path| path.into_iter().next());
    used.filter(|module| NEIGHBOURS.contains(&&**module)).collect()
}

/// The paths that a file uses in these crates, and by `super` and `self` if its own module is given.
fn paths_of(
    text: &str,
    crates: &'static [&'static str],
    module: Option<Vec<String>>,
) -> BTreeSet<Vec<String>> {
    let mut uses = Uses {
        crates,
        module,
        found: BTreeSet::new(),
    };
    uses.visit_file(&parse(text));
    uses.found
}

struct Uses {
    crates: &'static [&'static str],
    module: Option<Vec<String>>,
    found: BTreeSet<Vec<String>>,
}

impl Uses {
    fn take(&mut self, path: &[String]) {
        let supers = path.iter().take_while(|part| *part == "super").count();
        let (base, rest) = match (path.first().map(String::as_str), &self.module) {
            (Some(root), _) if self.crates.contains(&root) => (&[][..], &path[1..]),
            (Some("self"), Some(module)) => (&module[..], &path[1..]),
            (Some("super"), Some(module)) if supers <= module.len() => {
                (&module[..module.len() - supers], &path[supers..])
            }
            _ => return,
        };
        if !rest.is_empty() {
            self.found.insert([base, rest].concat());
        }
    }

    fn take_tree(&mut self, tree: &UseTree, before: &mut Vec<String>) {
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.take_tree(&path.tree, before);
                before.pop();
            }
            UseTree::Name(name) => self.take(&[before.clone(), vec![name.ident.to_string()]].concat()),
            UseTree::Rename(name) => self.take(&[before.clone(), vec![name.ident.to_string()]].concat()),
            UseTree::Glob(_) => self.take(before),
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.take_tree(tree, before);
                }
            }
        }
    }
}

impl Visit<'_> for Uses {
    fn visit_item_use(&mut self, item: &syn::ItemUse) {
        self.take_tree(&item.tree, &mut Vec::new());
    }

    fn visit_path(&mut self, path: &syn::Path) {
        let parts: Vec<String> = path.segments.iter().map(|part| part.ident.to_string()).collect();
        self.take(&parts);
        syn::visit::visit_path(self, path);
    }

    fn visit_item_mod(&mut self, module: &syn::ItemMod) {
        let outside = self.module.clone();
        if let Some(path) = &mut self.module {
            path.push(module.ident.to_string());
        }
        syn::visit::visit_item_mod(self, module);
        self.module = outside;
    }

    /// The inside of a macro is tokens: `crate::module::part` is looked for among them.
    fn visit_macro(&mut self, it: &syn::Macro) {
        let words: Vec<String> = flat(it.tokens.clone()).map(|token| token.to_string()).collect();
        let mut rest = &words[..];
        while !rest.is_empty() {
            let mut path = vec![rest[0].clone()];
            let mut after = &rest[1..];
            while let [first, second, name, more @ ..] = after
                && first == ":"
                && second == ":"
            {
                path.push(name.clone());
                after = more;
            }
            self.take(&path);
            rest = after;
        }
    }
}

fn has_unbiased_select(text: &str) -> bool {
    struct Select(bool);
    impl Visit<'_> for Select {
        fn visit_macro(&mut self, it: &syn::Macro) {
            let first = it.tokens.clone().into_iter().next();
            let is_select = it.path.segments.last().is_some_and(|last| last.ident == "select");
            self.0 |= is_select && first.is_none_or(|first| first.to_string() != "biased");
        }
    }
    let mut select = Select(false);
    select.visit_file(&parse(text));
    select.0
}

/// The names of the types and traits that a file declares outside of functions, also in its calls of macros.
fn types(text: &str) -> Vec<String> {
    struct Types(Vec<String>);
    impl Visit<'_> for Types {
        fn visit_item_struct(&mut self, it: &syn::ItemStruct) {
            self.0.push(it.ident.to_string());
        }
        fn visit_item_enum(&mut self, it: &syn::ItemEnum) {
            self.0.push(it.ident.to_string());
        }
        fn visit_item_trait(&mut self, it: &syn::ItemTrait) {
            self.0.push(it.ident.to_string());
        }
        fn visit_item_type(&mut self, it: &syn::ItemType) {
            self.0.push(it.ident.to_string());
        }
        fn visit_item_macro(&mut self, it: &syn::ItemMacro) {
            let is_call = it.ident.is_none();
            let words: Vec<String> = flat(it.mac.tokens.clone()).map(|it| it.to_string()).collect();
            for [keyword, name] in words.windows(2).filter_map(|two| two.as_array()) {
                if is_call && ["struct", "enum"].contains(&&**keyword) {
                    self.0.push(name.clone());
                }
            }
        }
        fn visit_block(&mut self, _: &syn::Block) {}
    }
    let mut types = Types(Vec::new());
    types.visit_file(&parse(text));
    types.0
}

fn has_text(text: &str, wanted: &str) -> bool {
    struct Texts<'a>(&'a str, bool);
    impl Visit<'_> for Texts<'_> {
        fn visit_lit_str(&mut self, it: &syn::LitStr) {
            self.1 |= it.value().contains(self.0);
        }
        /// Documentation is an attribute with a text, and no text of the program.
        fn visit_attribute(&mut self, it: &Attribute) {
            if !it.path().is_ident("doc") {
                syn::visit::visit_attribute(self, it);
            }
        }
        fn visit_macro(&mut self, it: &syn::Macro) {
            self.1 |= flat(it.tokens.clone())
                .any(|token| matches!(token, TokenTree::Literal(it) if it.to_string().contains(self.0)));
        }
    }
    let mut texts = Texts(wanted, false);
    texts.visit_file(&parse(text));
    texts.1
}

fn has_word(text: &str, wanted: &str) -> bool {
    struct Words<'a>(&'a str, bool);
    impl Visit<'_> for Words<'_> {
        fn visit_ident(&mut self, it: &syn::Ident) {
            self.1 |= it == self.0;
        }
    }
    let mut words = Words(wanted, false);
    words.visit_file(&parse(text));
    words.1
}

/// The tokens of a stream and of all groups in it.
fn flat(tokens: TokenStream) -> Box<dyn Iterator<Item = TokenTree>> {
    Box::new(tokens.into_iter().flat_map(|token| match token {
        TokenTree::Group(group) => flat(group.stream()),
        other => Box::new(std::iter::once(other)),
    }))
}

/// The program part of a file: without what is compiled for tests alone.
fn parse(text: &str) -> syn::File {
    let mut file = syn::parse_file(text).unwrap();
    file.items.retain(|item| !is_test(attributes(item)));
    file
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|it| {
        it.path().is_ident("cfg")
            && matches!(&it.meta, syn::Meta::List(list) if list.tokens.to_string() == "test")
    })
}

fn attributes(item: &syn::Item) -> &[Attribute] {
    match item {
        syn::Item::Const(it) => &it.attrs,
        syn::Item::Fn(it) => &it.attrs,
        syn::Item::Impl(it) => &it.attrs,
        syn::Item::Mod(it) => &it.attrs,
        syn::Item::Use(it) => &it.attrs,
        _ => &[],
    }
}

fn all_sources() -> impl Iterator<Item = PathBuf> {
    CRATES.iter().copied().flat_map(rust_files)
}

/// The Rust files of a folder, those that only tests use left out.
fn rust_files(top: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![PathBuf::from(top)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(root().join(&folder)).unwrap() {
            let path = folder.join(entry.unwrap().file_name());
            if root().join(&path).is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == "rs") && !is_for_tests(top, &path) {
                files.push(path);
            }
        }
    }
    assert!(files.len() > 10, "{top} has {} files", files.len());
    files
}

/// A file that its parent declares under `#[cfg(test)]`, or that lies in a folder of tests.
fn is_for_tests(top: &str, path: &Path) -> bool {
    let is_tests = |part: &std::ffi::OsStr| part == "tests" || part == "tests.rs";
    if path.strip_prefix(top).unwrap().iter().any(is_tests) {
        return true;
    }
    let parent = path.parent().unwrap().with_extension("rs");
    let Ok(parent) = std::fs::read_to_string(root().join(parent)) else {
        return false;
    };
    let name = path.file_stem().unwrap().to_str().unwrap();
    syn::parse_file(&parent)
        .unwrap()
        .items
        .iter()
        .any(|item| matches!(item, syn::Item::Mod(it) if it.ident == name && is_test(&it.attrs)))
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
