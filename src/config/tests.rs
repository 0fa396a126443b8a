use clap::{CommandFactory as _, Parser as _};

use super::*;
use crate::cli::{Cli, Command, Verb};

/// The least that has to be set.
fn least() -> Args {
    Args {
        vcenter_host: Some("vcenter.example.com".to_owned()),
        vcenter_user: Some("haulout@vsphere.local".to_owned()),
        vcenter_password: Some("s3cret".into()),
        ..Args::default()
    }
}

/// The arguments with one of them set.
fn with(set: impl FnOnce(&mut Args, Option<String>), value: &str) -> Args {
    let mut args = least();
    set(&mut args, Some(value.to_owned()));
    args
}

#[test]
fn the_defaults_are_those_of_the_python_controller_but_for_verified_certificates() {
    let described: Vec<_> = Config::from_args(least()).unwrap().describe();
    let expected = [
        ("VCENTER_HOST", "vcenter.example.com"),
        ("VCENTER_USER", "haulout@vsphere.local"),
        ("VCENTER_PASSWORD", "***"),
        ("VCENTER_CA_BUNDLE", ""),
        ("VCENTER_TLS_VERIFY", "true"),
        ("VCENTER_CALL_TIMEOUT_SECONDS", "30"),
        ("VCENTER_LONG_POLL_SECONDS", "120"),
        ("GPU_NODE_LABEL", "intel.feature.node.kubernetes.io/gpu=true"),
        ("GPU_RESOURCES", "nvidia.com/*,amd.com/*,gpu.intel.com/*"),
        ("ANNOTATION_PREFIX", "vsphere-maintenance.boeye.net"),
        ("BIND_BY_NAME", "false"),
        ("NODE_MAINTENANCES", "true"),
        ("NODE_MAINTENANCE_HISTORY", "20"),
        ("REQUIRE_APPROVAL", "false"),
        ("POLL_INTERVAL_SECONDS", "30"),
        ("DRAIN_TIMEOUT_SECONDS", "600"),
        ("DRAIN_TIMEOUT_ACTION", "power-off"),
        ("EVICTION_RETRY_SECONDS", "5"),
        ("GUEST_SHUTDOWN_TIMEOUT_SECONDS", "120"),
        ("RELOCATE_TIMEOUT_SECONDS", "600"),
        ("POWER_ON_TIMEOUT_SECONDS", "300"),
        ("POWER_OFF_TIMEOUT_SECONDS", "300"),
        ("MAINTENANCE_RETRY_GRACE_SECONDS", "10"),
        ("NODE_MONITOR_GRACE_SECONDS", "60"),
        ("DRAIN_SLOT_SECONDS", "1800"),
        ("RETRY_MAX_SECONDS", "30"),
        ("MAX_CONCURRENT_DRAINS", "1"),
        ("MAX_UNAVAILABLE", "unlimited"),
        ("LEADER_ELECTION", "auto"),
        ("LEASE_NAME", "haulout"),
        ("LEASE_NAMESPACE", ""),
        ("RELEASE", ""),
        ("ADOPT_RELEASES", ""),
        ("LEASE_DURATION_SECONDS", "15"),
        ("LEASE_RENEW_DEADLINE_SECONDS", "10"),
        ("LEASE_RETRY_PERIOD_SECONDS", "2"),
        ("NODE_CONDITIONS", "off"),
        ("LOG_FORMAT", "text"),
        ("LOG_LEVEL", "info"),
        ("LOG_LEVEL_FILE", ""),
        ("METRICS_ADDRESS", "0.0.0.0:8080"),
        ("HEALTH_ADDRESS", "0.0.0.0:8081"),
        ("STATUS_ADDRESS", "off"),
        ("TRACE_UI_URL_TEMPLATE", ""),
        ("DRY_RUN", "false"),
    ];
    assert_eq!(described, expected.map(|(name, value)| (name, value.to_owned())));
}

#[test]
fn each_malformed_value_is_named_with_its_flag_and_what_would_be_right() {
    type Set = fn(&mut Args, Option<String>);
    let cases: &[(Set, &[&str], &str, &str)] = &[
        (
            |a, v| a.poll_interval_seconds = v,
            &["0", "3601", "-1", "1.5", "30s", "x"],
            "POLL_INTERVAL_SECONDS (--poll-interval-seconds)",
            "from 1 to 3600",
        ),
        (
            |a, v| a.drain_timeout_seconds = v,
            &["0", "604801", "ten"],
            "DRAIN_TIMEOUT_SECONDS (--drain-timeout-seconds)",
            "from 1 to 604800",
        ),
        (
            |a, v| a.eviction_retry_seconds = v,
            &["0", "601"],
            "EVICTION_RETRY_SECONDS",
            "from 1 to 600",
        ),
        (
            |a, v| a.guest_shutdown_timeout_seconds = v,
            &["0", "86401"],
            "GUEST_SHUTDOWN_TIMEOUT_SECONDS",
            "from 1 to 86400",
        ),
        (
            |a, v| a.relocate_timeout_seconds = v,
            &["0", "604801"],
            "RELOCATE_TIMEOUT_SECONDS",
            "from 1 to 604800",
        ),
        (
            |a, v| a.power_on_timeout_seconds = v,
            &["0", "86401"],
            "POWER_ON_TIMEOUT_SECONDS",
            "from 1 to 86400",
        ),
        (
            |a, v| a.power_off_timeout_seconds = v,
            &["0", "86401"],
            "POWER_OFF_TIMEOUT_SECONDS",
            "from 1 to 86400",
        ),
        (
            |a, v| a.maintenance_retry_grace_seconds = v,
            &["0", "86401"],
            "MAINTENANCE_RETRY_GRACE_SECONDS",
            "from 1 to 86400",
        ),
        (
            |a, v| a.node_monitor_grace_seconds = v,
            &["0", "3601"],
            "NODE_MONITOR_GRACE_SECONDS",
            "from 1 to 3600",
        ),
        (
            |a, v| a.drain_slot_seconds = v,
            &["0", "604801"],
            "DRAIN_SLOT_SECONDS",
            "from 1 to 604800",
        ),
        (
            |a, v| a.release = v,
            &["Team A", "a//b"],
            "RELEASE",
            "lower-case letters",
        ),
        (
            |a, v| a.adopt_releases = v,
            &["Team A", "a//b"],
            "ADOPT_RELEASES",
            "lower-case letters",
        ),
        (
            |a, v| a.retry_max_seconds = v,
            &["0", "3601"],
            "RETRY_MAX_SECONDS",
            "from 1 to 3600",
        ),
        (
            |a, v| a.vcenter_call_timeout_seconds = v,
            &["0", "601"],
            "VCENTER_CALL_TIMEOUT_SECONDS",
            "from 1 to 600",
        ),
        (
            |a, v| a.vcenter_long_poll_seconds = v,
            &["0", "1201", "99999999999999999999999"],
            "VCENTER_LONG_POLL_SECONDS",
            "from 1 to 1200",
        ),
        (
            |a, v| a.max_concurrent_drains = v,
            &["0", "1001", "-1", "all"],
            "MAX_CONCURRENT_DRAINS (--max-concurrent-drains)",
            "1 to 1000 nodes",
        ),
        (
            |a, v| a.max_unavailable = v,
            &["0", "10001", "0%", "101%", "%", "half"],
            "MAX_UNAVAILABLE",
            "1 to 10000 nodes or 1% to 100%",
        ),
        (
            |a, v| a.drain_timeout_action = v,
            &["off", "force"],
            "DRAIN_TIMEOUT_ACTION",
            "power-off or hold",
        ),
        (
            |a, v| a.vcenter_tls_verify = v,
            &["on", "nope"],
            "VCENTER_TLS_VERIFY (--vcenter-tls-verify)",
            "true or false",
        ),
        (|a, v| a.bind_by_name = v, &["2"], "BIND_BY_NAME", "true or false"),
        (
            |a, v| a.node_maintenances = v,
            &["2"],
            "NODE_MAINTENANCES",
            "true or false",
        ),
        (
            |a, v| a.node_maintenance_history = v,
            &["-1", "1001"],
            "NODE_MAINTENANCE_HISTORY",
            "0 to 1000",
        ),
        (
            |a, v| a.require_approval = v,
            &["2"],
            "REQUIRE_APPROVAL",
            "true or false",
        ),
        (|a, v| a.dry_run = v, &["maybe"], "DRY_RUN", "true or false"),
        (
            |a, v| a.leader_election = v,
            &["on", "maybe"],
            "LEADER_ELECTION (--leader-election)",
            "auto or true or false",
        ),
        (
            |a, v| a.lease_name = v,
            &["A B", "-x"],
            "LEASE_NAME",
            "a name of 1 to 253",
        ),
        (
            |a, v| a.lease_namespace = v,
            &["a/b"],
            "LEASE_NAMESPACE",
            "a name of 1 to 253",
        ),
        (
            |a, v| a.lease_duration_seconds = v,
            &["601", "-1", "NaN", "inf", "15s"],
            "LEASE_DURATION_SECONDS (--lease-duration-seconds)",
            "0.5 to 600 seconds",
        ),
        (
            |a, v| a.lease_renew_deadline_seconds = v,
            &["0.2", "401"],
            "LEASE_RENEW_DEADLINE_SECONDS",
            "0.3 to 400 seconds",
        ),
        (
            |a, v| a.lease_retry_period_seconds = v,
            &["0", "0.05", "61"],
            "LEASE_RETRY_PERIOD_SECONDS",
            "0.1 to 60 seconds",
        ),
        (
            |a, v| a.node_conditions = v,
            &["on", "true"],
            "NODE_CONDITIONS (--node-conditions)",
            "well-known or off",
        ),
        (
            |a, v| a.metrics_address = v,
            &[
                "8080",
                ":8080",
                "0.0.0.0",
                "0.0.0.0:65536",
                "localhost:8080",
                "none",
            ],
            "METRICS_ADDRESS (--metrics-address)",
            "a port from 0 to 65535 are expected, as in 0.0.0.0:8080 or [::]:8080, or off",
        ),
        (
            |a, v| a.health_address = v,
            &["8081"],
            "HEALTH_ADDRESS (--health-address)",
            "0.0.0.0:8081",
        ),
        (
            |a, v| a.status_address = v,
            &["8082", "on"],
            "STATUS_ADDRESS (--status-address)",
            "0.0.0.0:8082",
        ),
        (
            |a, v| a.trace_ui_url_template = v,
            &["jaeger/{trace_id}", "https://jaeger/trace/"],
            "TRACE_UI_URL_TEMPLATE",
            "{trace_id}",
        ),
        (|a, v| a.log_format = v, &["xml"], "LOG_FORMAT", "text or json"),
        (
            |a, v| a.log_level = v,
            &["loud", "kube=", "=info", "info,", "a b=info"],
            "LOG_LEVEL",
            "one of off, error, warn, info, debug, trace",
        ),
        (
            |a, v| a.gpu_node_label = v,
            &["=x", "gpu in (", "gpu=a=b"],
            "GPU_NODE_LABEL",
            "a label selector",
        ),
        (
            |a, v| a.annotation_prefix = v,
            &["Upper.example", "a b", "-x", "a/b", "a..b"],
            "ANNOTATION_PREFIX",
            "DNS name",
        ),
    ];
    for (set, values, name, range) in cases {
        for value in *values {
            let error = Config::from_args(with(set, value)).unwrap_err();
            assert_eq!(error.wrong.len(), 1, "{name}={value}");
            let text = error.to_string();
            assert!(text.contains(name) && text.contains(range), "{text}");
            assert!(text.contains(&format!("{value:?}")), "{text}");
        }
    }
    assert_eq!(EXIT_CODE, 2);
}

#[test]
fn every_valid_form_is_understood() {
    let read = |set: fn(&mut Args, Option<String>), value: &str| Config::from_args(with(set, value)).unwrap();
    for (text, expected) in [
        ("TRUE", true),
        ("1", true),
        ("yes", true),
        ("false", false),
        ("0", false),
        ("No", false),
    ] {
        assert_eq!(
            read(|args, value| args.dry_run = value, text).dry_run,
            expected,
            "{text}"
        );
    }
    for (text, expected) in [
        ("3", MaxUnavailable::Nodes(3)),
        ("25%", MaxUnavailable::Percent(25)),
        ("", MaxUnavailable::Unlimited),
    ] {
        assert_eq!(
            read(|args, value| args.max_unavailable = value, text).max_unavailable,
            expected
        );
    }
    assert_eq!(
        read(|args, value| args.poll_interval_seconds = value, " 1\n").poll_interval,
        Duration::from_secs(1)
    );
    assert_eq!(
        read(|args, value| args.annotation_prefix = value, "x.example/").annotation_prefix,
        "x.example"
    );
    assert_eq!(
        read(|args, value| args.log_level = value, "INFO,kube=debug").log_level,
        "info,kube=debug"
    );
    assert_eq!(
        read(|args, value| args.drain_timeout_action = value, "hold").drain_timeout_action,
        DrainTimeoutAction::Hold
    );
}

#[test]
fn a_setting_that_is_set_to_nothing_is_not_set() {
    let config = Config::from_args(Args {
        vcenter_user_file: Some(String::new()),
        vcenter_password_file: Some(String::new()),
        vcenter_ca_bundle: Some(" ".to_owned()),
        poll_interval_seconds: Some(String::new()),
        gpu_node_label: Some(String::new()),
        dry_run: Some(String::new()),
        ..least()
    })
    .unwrap();
    assert_eq!(config.poll_interval, Duration::from_secs(30));
    assert_eq!(config.vcenter_ca_bundle, None);
    assert!(!config.dry_run);
}

#[test]
fn all_that_is_wrong_is_told_at_once() {
    let error = Config::from_args(Args {
        vcenter_password_file: Some("/run/password".to_owned()),
        vcenter_password: Some("s3cret".into()),
        poll_interval_seconds: Some("0".to_owned()),
        ..Args::default()
    })
    .unwrap_err();
    let text = error.to_string();
    assert_eq!(text.lines().count(), 5, "{text}");
    for words in [
        "VCENTER_HOST (--vcenter-host) is not set",
        "VCENTER_USER (--vcenter-user) is not set: it or VCENTER_USER_FILE is expected",
        "VCENTER_PASSWORD_FILE=/run/password; one of the two is expected",
        "POLL_INTERVAL_SECONDS (--poll-interval-seconds) is \"0\"",
    ] {
        assert!(text.contains(words), "{text}");
    }
    assert!(!text.contains("s3cret"));
}

#[test]
fn a_ca_bundle_goes_before_a_wish_not_to_verify() {
    let unverified = with(|args, value| args.vcenter_tls_verify = value, "false");
    assert!(!Config::from_args(unverified.clone()).unwrap().vcenter_tls_verify);
    let bundle = Args {
        vcenter_ca_bundle: Some("/etc/ca.pem".to_owned()),
        ..unverified
    };
    assert!(Config::from_args(bundle).unwrap().vcenter_tls_verify);
}

#[test]
fn the_password_is_in_no_output() {
    let mut args = least();
    args.vcenter_host = Some("https://root:s3cret@vcenter.example.com/sdk".to_owned());
    let typed = format!(
        "{:?}",
        Args {
            vcenter_host: None,
            ..args.clone()
        }
    );
    assert!(!typed.contains("s3cret"), "{typed}");
    let config = Config::from_args(args).unwrap();
    let described = format!("{:?}", config.describe());
    assert!(!described.contains("s3cret"), "{described}");
    let debug = format!("{:?}", config.vcenter_password);
    assert!(!debug.contains("s3cret"), "{debug}");
}

#[test]
fn every_setting_has_one_name_in_the_environment_and_on_the_command_line() {
    let command = Cli::command();
    let run = command.find_subcommand("run").unwrap();
    let mut names: Vec<_> = run.get_arguments().filter_map(|arg| arg.get_env()).collect();
    for arg in run.get_arguments().filter(|arg| arg.get_id() != "help") {
        let name = arg.get_env().unwrap().to_str().unwrap();
        assert_eq!(format!("--{}", arg.get_long().unwrap()), setting::flag(name));
        assert!(arg.get_help_heading().is_some(), "{name}");
    }
    names.sort();
    for (name, _) in Config::from_args(least()).unwrap().describe() {
        assert!(names.iter().any(|known| *known == name), "{name}");
    }
}

#[test]
fn the_help_states_the_default_and_the_range_of_every_period() {
    let command = Cli::command();
    let run = command.find_subcommand("run").unwrap();
    for (seconds, name) in [
        POLL_INTERVAL,
        DRAIN_TIMEOUT,
        EVICTION_RETRY,
        GUEST_SHUTDOWN_TIMEOUT,
        RELOCATE_TIMEOUT,
        POWER_ON_TIMEOUT,
        POWER_OFF_TIMEOUT,
        MAINTENANCE_RETRY_GRACE,
        NODE_MONITOR_GRACE,
        DRAIN_SLOT,
        RETRY_MAX,
        VCENTER_CALL_TIMEOUT,
        VCENTER_LONG_POLL,
    ]
    .map(|seconds| (seconds, seconds.name()))
    {
        let arg = run
            .get_arguments()
            .find(|arg| arg.get_env().is_some_and(|env| env == name))
            .unwrap();
        let help = arg.get_help().unwrap().to_string();
        assert!(help.ends_with(&seconds.range()), "{name}: {help}");
    }
}

#[test]
fn the_command_line_is_understood() {
    Cli::command().debug_assert();
    let Command::Run(args) =
        Cli::try_parse_from(["haulout", "run", "--dry-run", "--vcenter-tls-verify=false"])
            .unwrap()
            .command
    else {
        panic!("run is run");
    };
    assert_eq!(args.dry_run.as_deref(), Some("true"));
    assert_eq!(args.vcenter_tls_verify.as_deref(), Some("false"));
    let version = Cli::try_parse_from(["haulout", "version"]).unwrap().command;
    assert!(matches!(version, Command::Verb(verb) if matches!(*verb, Verb::Version(_))));
    assert_eq!(
        Cli::try_parse_from(["haulout", "run", "--no-such-flag"])
            .unwrap_err()
            .exit_code(),
        2
    );
}
