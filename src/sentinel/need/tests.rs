use super::*;

fn words(command: &[&str]) -> Vec<String> {
    command.iter().map(|word| (*word).to_owned()).collect()
}

fn why(need: RebootNeed) -> String {
    match need {
        RebootNeed::Unknown(why) => why,
        RebootNeed::Required(_) | RebootNeed::NotRequired => panic!("{need:?}"),
    }
}

#[test]
fn one_reason_is_enough_and_an_unknown_one_is_not_taken_for_none() {
    let required = |reason: &str| RebootNeed::Required(reason.to_owned());
    let unknown = |why: &str| RebootNeed::Unknown(why.to_owned());
    for (needs, expected) in [
        (vec![], RebootNeed::NotRequired),
        (vec![RebootNeed::NotRequired], RebootNeed::NotRequired),
        (
            vec![RebootNeed::NotRequired, unknown("a"), unknown("b")],
            unknown("a; b"),
        ),
        (
            vec![unknown("a"), required("b"), required("c")],
            required("b, and c"),
        ),
    ] {
        assert_eq!(all(needs.clone()), expected, "{needs:?}");
    }
}

#[tokio::test]
async fn file_requires_a_reboot_while_it_exists() {
    let directory = std::env::temp_dir().join(format!("haulout-sentinel-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let file = directory.join("reboot-required");
    assert_eq!(by_file(&file).await, RebootNeed::NotRequired);
    // Its target may be outside of the container.
    std::os::unix::fs::symlink("/nowhere", &file).unwrap();
    let expected = RebootNeed::Required(format!("{} exists", file.display()));
    assert_eq!(by_file(&file).await, expected);
    let below = file.join("x");
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, "").unwrap();
    assert!(why(by_file(&below).await).contains("reboot-required/x"));
    std::fs::remove_dir_all(&directory).unwrap();
}

#[tokio::test]
async fn only_exit_code_0_requires_a_reboot_and_only_1_requires_none() {
    let run = async |script: &str| by_command(&words(&["sh", "-c", script])).await;
    assert_eq!(by_command(&[]).await, RebootNeed::NotRequired);
    assert_eq!(
        run("exit 0").await,
        RebootNeed::Required("sh has exit code 0".to_owned())
    );
    assert_eq!(run("exit 1").await, RebootNeed::NotRequired);
    let missing = run("needs-restarting --reboothint").await;
    let text = why(missing);
    assert!(
        text.starts_with("the command sh: exit code 127: ") && text.contains("not found"),
        "{text}"
    );
    assert_eq!(
        why(run("kill -9 $$").await),
        "the command sh: it was ended by a signal"
    );
    let absent = by_command(&words(&["/nowhere/needs-restarting"])).await;
    assert!(why(absent).contains("No such file or directory"));
}

#[tokio::test]
async fn command_is_bounded_in_time_and_output() {
    let run = async |script: &str, millis| {
        by_command_within(&words(&["sh", "-c", script]), Duration::from_millis(millis)).await
    };
    let text = why(run("sleep 60", 50).await);
    assert_eq!(text, "the command sh: it did not end within 0.05 s");
    // More than a pipe holds.
    let text = why(run("head -c 300000 /dev/zero | tr '\\0' x >&2; exit 3", 30_000).await);
    assert_eq!(
        text.len(),
        "the command sh: exit code 3: ".len() + ERROR_BYTES_MAX
    );
}

#[test]
fn annotation_requires_a_reboot_unless_it_names_another_boot() {
    let (boot, other) = (
        "0b6ee4a4-3c8f-4a6d-8f8e-2d9f6f3f7c11",
        "9d1f2f4e-5a0b-4c52-9a3e-000000000000",
    );
    let required = |value: Option<&str>| {
        let annotations = value.map(|value| BTreeMap::from([(REBOOT_REQUIRED.to_owned(), value.to_owned())]));
        match by_annotation(annotations.as_ref(), &BootId::new(boot)) {
            RebootNeed::Required(reason) => Some(reason),
            RebootNeed::NotRequired => None,
            RebootNeed::Unknown(why) => panic!("{why}"),
        }
    };
    for value in [None, Some("false"), Some(other)] {
        assert_eq!(required(value), None, "{value:?}");
    }
    for value in ["true", "", "new kernel", boot] {
        let expected = format!("the Node has the annotation haulout.dev/reboot-required={value}");
        assert_eq!(required(Some(value)), Some(expected));
    }
    let long = required(Some(&format!("a\n{}", "b".repeat(1_000)))).unwrap();
    assert!(long.len() < 200 && !long.contains('\n'), "{long}");
}
