//! Every example of the documents that is for Helm, rendered with the chart.

use haulout_lab::run_dir::RunDir;
use serde_json::Value;

use crate::helm::{chart, read, root, run};

/// A fenced block of a page: its language and its text.
struct Block {
    page: String,
    language: String,
    text: String,
}

/// The pages that people install by: the README, and docs/ without what is for developers.
fn pages() -> Vec<String> {
    let mut pages = vec!["README.md".to_owned(), "chart/README.md".to_owned()];
    let mut folders = vec!["docs".to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(root().join(&folder)).unwrap() {
            let entry = entry.unwrap();
            let path = format!("{folder}/{}", entry.file_name().to_str().unwrap());
            if entry.path().is_dir() {
                if !path.ends_with("/development") {
                    folders.push(path);
                }
            } else if path.ends_with(".md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    pages
}

fn blocks() -> Vec<Block> {
    let mut blocks = Vec::new();
    for page in pages() {
        let text = read(&page);
        let mut open: Option<Block> = None;
        for line in text.lines() {
            let fence = line.trim_start().strip_prefix("```");
            match (&mut open, fence) {
                (None, Some(language)) => {
                    open = Some(Block {
                        page: page.clone(),
                        language: language.trim().to_owned(),
                        text: String::new(),
                    });
                }
                (Some(_), Some(_)) => blocks.extend(open.take()),
                (Some(block), None) => {
                    block.text.push_str(line);
                    block.text.push('\n');
                }
                (None, None) => {}
            }
        }
        assert!(open.is_none(), "{page}: a block has no end");
    }
    blocks
}

/// Renders the chart, with a Secret where the example names no vCenter.
fn render(about: &str, args: &[String]) -> String {
    let chart = chart();
    let mut all = vec!["template", "haulout", chart.to_str().unwrap(), "-n", "haulout"];
    all.extend(args.iter().map(String::as_str));
    let output = run("helm", &all);
    assert!(
        output.status.success(),
        "{about}: helm {all:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The chart's values in an object of Flux or Argo CD, or the object itself if all its keys are values of the chart.
fn values_in(object: &Value) -> Option<Value> {
    let of_chart: Value = serde_saphyr::from_str(&read("chart/values.yaml")).unwrap();
    let keys = object.as_object()?;
    match object["kind"].as_str() {
        Some("HelmRelease") => Some(object["spec"]["values"].clone()),
        Some("Application") => Some(object["spec"]["source"]["helm"]["valuesObject"].clone()),
        Some(_) => None,
        None => keys
            .keys()
            .all(|key| of_chart.get(key).is_some())
            .then(|| object.clone()),
    }
}

#[test]
fn every_values_example_of_the_documents_renders() {
    let dir = RunDir::create().unwrap();
    let mut rendered = 0;
    for block in blocks().iter().filter(|block| block.language == "yaml") {
        let objects: Vec<Value> = serde_saphyr::from_multiple(&block.text)
            .unwrap_or_else(|error| panic!("{}: {error}\n{}", block.page, block.text));
        for values in objects.iter().filter_map(values_in) {
            let file = dir.write("values.json", values.to_string()).unwrap();
            let mut args = vec!["-f".to_owned(), file.to_str().unwrap().to_owned()];
            if values["vcenter"]["existingSecret"].is_null() {
                args.extend(["--set".to_owned(), "vcenter.existingSecret=vcenter".to_owned()]);
            }
            let text = render(&block.page, &args);
            rendered += 1;
            if block.text.contains("{{ .username }}") {
                assert!(
                    text.contains("VCENTER_USER: '{{ .username }}'"),
                    "{}: the template of External Secrets is lost",
                    block.page
                );
            }
        }
    }
    assert!(rendered > 6, "only {rendered} examples were rendered");
}

/// The values that a command of helm sets, or nothing if it installs no chart.
fn set_by(command: &str) -> Option<Vec<String>> {
    let words: Vec<&str> = command
        .split_whitespace()
        .take_while(|word| *word != "#")
        .collect();
    if words.first() != Some(&"helm") || !words.iter().any(|word| ["install", "upgrade"].contains(word)) {
        return None;
    }
    let mut args = Vec::new();
    for pair in words.windows(2).filter(|pair| pair[0] == "--set") {
        // The shell takes the quotes away.
        let value = pair[1].replace(['\'', '"'], "");
        args.extend(["--set".to_owned(), value]);
    }
    Some(args)
}

#[test]
fn every_helm_command_of_the_documents_renders() {
    let mut commands = 0;
    for block in blocks().iter().filter(|block| block.language == "sh") {
        let joined = block.text.replace("\\\n", " ");
        for line in joined.lines() {
            let Some(mut args) = set_by(line.trim()) else {
                continue;
            };
            commands += 1;
            assert!(
                !line.contains("--reuse-values"),
                "{}: values of a new chart would be missing: {line}",
                block.page
            );
            let tenant = line.contains("tenantObjectsOnly");
            if !tenant && !line.contains("vcenter.existingSecret") {
                args.extend(["--set".to_owned(), "vcenter.existingSecret=vcenter".to_owned()]);
            }
            // Added to a release of a hosted cluster.
            if line.contains("machinesNamespace") && !line.contains("workloadCluster.name") {
                let hosted = "workloadCluster.name=a,workloadCluster.kubeconfigSecret.name=a";
                args.extend(["--set".to_owned(), hosted.to_owned()]);
            }
            render(&format!("{}: {line}", block.page), &args);
        }
    }
    assert!(commands > 10, "only {commands} commands were rendered");
}
