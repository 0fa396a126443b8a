//! The response of the command line to a wrong value: exit code 2, the name, the value, and the valid range.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Runs `haulout run` with only these variables.
fn run(environment: &[(&str, &str)]) -> Output {
    perform("run", environment)
}

fn perform(subcommand: &str, environment: &[(&str, &str)]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_haulout"))
        .arg(subcommand)
        .env_clear()
        .envs(environment.iter().copied())
        .output()
        .expect("running haulout")
}

#[test]
fn wrong_value_exits_with_2_and_shows_the_valid_range() {
    let good = [
        ("VCENTER_HOST", "vc.example.com"),
        ("VCENTER_USER", "someone"),
        ("VCENTER_PASSWORD", "hunter2-canary"),
    ];
    for (name, value, expected) in [
        ("VCENTER_HOST", "", "name, name:port or URL"),
        ("VCENTER_HOST", "http://vc.example.com", "only https"),
        (
            "VCENTER_HOST",
            "https://user:secret@vc.example.com",
            "VCENTER_HOST",
        ),
        ("VCENTER_HOST", "vc.example.com:0x50", "VCENTER_HOST"),
        ("VCENTER_USER", "", "VCENTER_USER_FILE"),
        ("VCENTER_PASSWORD", "", "VCENTER_PASSWORD_FILE"),
        ("VCENTER_TLS_VERIFY", "maybe", "true or false"),
        ("VCENTER_THUMBPRINT", "aa:bb", "64 hexadecimal digits"),
        ("GPU_NODE_LABEL", "a==b==c", "label selector"),
        ("GPU_RESOURCES", "nvidia.com/*,,", "GPU_RESOURCES"),
        ("POLL_INTERVAL_SECONDS", "0", "from 1 to"),
        ("POLL_INTERVAL_SECONDS", "-5", "from 1 to"),
        ("POLL_INTERVAL_SECONDS", "1e3", "from 1 to"),
        ("POLL_INTERVAL_SECONDS", "99999999999999999999", "from 1 to"),
        ("DRAIN_TIMEOUT_SECONDS", "ten", "from 1 to"),
        ("DRAIN_TIMEOUT_ACTION", "kill", "power-off or hold"),
        ("DRAIN_WAIT_MAX_SECONDS", "-1", "from 0 to"),
        ("GUEST_SHUTDOWN_TIMEOUT_SECONDS", "2m", "from 1 to"),
        ("VMOTION_GRACE_SECONDS", "never", "unlimited"),
        ("POWER_ON_TIMEOUT_SECONDS", "", ""),
        ("MAX_CONCURRENT_DRAINS", "0", "1 to"),
        ("MAX_UNAVAILABLE", "0", "1%"),
        ("MAX_UNAVAILABLE", "101%", "1% to 100%"),
        ("NODE_BINDING", "perhaps", "uuid or provider-id or name"),
        ("VCENTER_REPORT", "log", "none or a list of events, attribute"),
        ("LOG_FORMAT", "xml", "text or json"),
        ("LOG_LEVEL", "loud=very=much", "info"),
        ("DRY_RUN", "2", "true or false"),
    ] {
        let mut environment = good.to_vec();
        environment.push((name, value));
        // An empty optional value means "unset", so only the required ones are wrong when empty.
        if expected.is_empty() {
            environment.push(("DRY_RUN", "2"));
        }
        let output = run(&environment);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{name}={value:?}: {stderr}");
        assert!(
            stderr.contains(expected),
            "{name}={value:?} should say {expected:?}: {stderr}"
        );
        let all = format!("{stderr}{}", String::from_utf8_lossy(&output.stdout));
        assert!(
            !all.contains("hunter2-canary") && !all.contains("user:secret"),
            "a password is in the output: {all}"
        );
    }
}

#[test]
fn sentinel_exits_with_2_on_a_wrong_value_or_without_its_node() {
    let node = ("NODE_NAME", "gpu-1");
    for (environment, expected) in [
        (vec![], "--node-name <NODE>"),
        (vec![node, ("SENTINEL_INTERVAL_SECONDS", "0")], "from 1 to 86400"),
        (vec![node, ("SENTINEL_PAUSE_SECONDS", "1d")], "from 1 to 31536000"),
        (
            vec![node, ("SENTINEL_WINDOW", "22:00-04:00 Europe/Berlln")],
            "is not a time zone that Haulout knows",
        ),
        (vec![node, ("LOG_LEVEL", "loud=very=much")], "info"),
    ] {
        let output = perform("sentinel", &environment);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{environment:?}: {stderr}");
        assert!(stderr.contains(expected), "{environment:?}: {stderr}");
    }
}

#[test]
fn all_wrong_settings_are_reported_at_once() {
    let output = run(&[("POLL_INTERVAL_SECONDS", "0"), ("DRY_RUN", "2")]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    for name in [
        "VCENTER_HOST",
        "VCENTER_USER",
        "VCENTER_PASSWORD",
        "POLL_INTERVAL_SECONDS",
        "DRY_RUN",
    ] {
        assert!(stderr.contains(name), "{name} is missing in {stderr}");
    }
}

#[test]
fn the_help_names_every_setting_of_the_python_controller() {
    let output = Command::new(env!("CARGO_BIN_EXE_haulout"))
        .args(["run", "--help"])
        .output()
        .unwrap();
    let help = String::from_utf8_lossy(&output.stdout);
    for name in [
        "VCENTER_HOST",
        "VCENTER_USER",
        "VCENTER_PASSWORD",
        "VCENTER_CA_BUNDLE",
        "VCENTER_TLS_VERIFY",
        "GPU_NODE_LABEL",
        "POLL_INTERVAL_SECONDS",
        "DRAIN_TIMEOUT_SECONDS",
        "GUEST_SHUTDOWN_TIMEOUT_SECONDS",
        "POWER_ON_TIMEOUT_SECONDS",
        "MAX_CONCURRENT_DRAINS",
        "DRY_RUN",
    ] {
        assert!(help.contains(name), "{name}");
    }
}

#[test]
fn a_blank_variable_counts_as_not_set() {
    let output = run(&[
        ("VCENTER_HOST", "vc.example.com"),
        ("VCENTER_USER", "someone"),
        ("VCENTER_USER_FILE", ""),
        ("VCENTER_PASSWORD", ""),
        ("VCENTER_PASSWORD_FILE", "/run/password"),
        ("POLL_INTERVAL_SECONDS", ""),
        ("DRAIN_TIMEOUT_ACTION", " "),
        ("MAX_UNAVAILABLE", ""),
        ("LEASE_NAMESPACE", ""),
        ("DRY_RUN", "\n"),
        ("LOG_FORMAT", "xml"),
    ]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(stderr.lines().count(), 2, "{stderr}");
    assert!(
        stderr.contains("LOG_FORMAT (--log-format) is \"xml\": text or json is expected"),
        "{stderr}"
    );
}

#[test]
fn a_flag_takes_precedence_over_its_variable() {
    let output = Command::new(env!("CARGO_BIN_EXE_haulout"))
        .args(["run", "--poll-interval-seconds", "0"])
        .env_clear()
        .env("POLL_INTERVAL_SECONDS", "30")
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains("POLL_INTERVAL_SECONDS (--poll-interval-seconds) is \"0\""),
        "{stderr}"
    );
}

#[test]
fn wrong_setting_is_reported_the_same_way_by_every_subcommand() {
    for words in [&["check"], &["export"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_haulout"))
            .args(words)
            .env_clear()
            .env("POLL_INTERVAL_SECONDS", "0")
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {stderr}");
        for name in ["POLL_INTERVAL_SECONDS", "VCENTER_HOST", "VCENTER_USER"] {
            assert!(stderr.contains(name), "{words:?}: {name} is missing in {stderr}");
        }
    }
}

fn haulout(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_haulout"))
        .args(args)
        .env_clear()
        .output()
        .expect("running haulout")
}

/// A path of this test file that does not exist.
fn scratch(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cli").join(name);
    std::fs::create_dir_all(path.parent().expect("a directory")).expect("making it");
    let _ = std::fs::remove_file(&path);
    path
}

#[test]
fn short_help_has_the_options_of_the_subcommand_only() {
    let short = haulout(&["list", "-h"]);
    let short = String::from_utf8_lossy(&short.stdout);
    assert!(
        short.contains("--watch") && !short.contains("--gpu-node-label") && !short.contains("--kubeconfig"),
        "{short}"
    );
    assert!(
        short.contains("--help\n") && short.lines().count() < 20,
        "{short}"
    );
    let long = haulout(&["help", "list"]);
    let long = String::from_utf8_lossy(&long.stdout);
    assert!(
        long.contains("--gpu-node-label") && long.contains("--kubeconfig"),
        "{long}"
    );
}

#[test]
fn closed_stdout_is_no_failure() {
    let haulout = env!("CARGO_BIN_EXE_haulout");
    let script = format!("{haulout} crd | head -n 1; echo ${{PIPESTATUS[0]}}");
    let output = Command::new("bash")
        .args(["-c", &script])
        .output()
        .expect("running bash");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stdout.ends_with("\n0\n") && stderr.is_empty(), "{stdout}{stderr}");
}

#[test]
fn error_of_connecting_names_the_address_of_the_kube_apiserver() {
    let kubeconfig = scratch("kubeconfig");
    let text = "{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}], \
                users: [{name: a, user: {}}], clusters: [{name: a, cluster: {server: 'http://127.0.0.1:9'}}]}";
    std::fs::write(&kubeconfig, text).expect("writing the kubeconfig");
    let output = haulout(&["list", "--kubeconfig", kubeconfig.to_str().expect("a path")]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    let words = "the read failed: no connection to the kube-apiserver at http://127.0.0.1:9: ";
    assert!(
        output.status.code() == Some(1) && stderr.contains(words),
        "{stderr}"
    );
}

#[test]
fn kubectl_completes_subcommands_flags_and_values() {
    let completer = scratch("kubectl_complete-haulout");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_haulout"), &completer).expect("a link");
    for (words, expected) in [
        (["dr"].as_slice(), "drain\tTake nodes out of service"),
        (&["drain", "--act"], "--action\t"),
        (&["drain", "--action", "Re"], "Reboot\t"),
    ] {
        let output = Command::new(&completer)
            .args(words)
            .env_clear()
            .output()
            .expect("completing");
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(
            stdout.contains(expected) && stdout.ends_with("\n:4\n"),
            "{words:?}: {stdout}"
        );
    }
}
