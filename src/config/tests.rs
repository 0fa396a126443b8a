use std::ffi::OsString;

use clap::{CommandFactory as _, Parser as _};

use super::*;
use crate::cli::{ArgsError, Cli, Command, Subcommand};

/// The least that has to be set.
const LEAST: [&str; 3] = [
    "--vcenter-host=vcenter.example.com",
    "--vcenter-user=haulout@vsphere.local",
    "--vcenter-password=s3cret",
];

/// What `haulout run` makes of these flags.
fn read(flags: &[&str]) -> Result<Config, ConfigError> {
    let args = ["haulout", "run"].iter().chain(flags).map(OsString::from);
    match Cli::read(args) {
        Ok(Cli {
            command: Command::Run(config),
        }) => Ok(*config),
        Ok(other) => panic!("{other:?}"),
        Err(ArgsError::Settings(error)) => Err(error),
        Err(ArgsError::CommandLine(error)) => panic!("{error}"),
    }
}

/// The same beside the least.
fn with(flags: &[&str]) -> Result<Config, ConfigError> {
    read(&[&LEAST, flags].concat())
}

fn problems(flags: &[&str]) -> ConfigError {
    with(flags).map(|_| ()).unwrap_err()
}

#[test]
fn defaults_are_those_of_the_python_controller_with_tls_verified() {
    let config = with(&[]).unwrap();
    let described: Vec<(&str, &str)> = config
        .describe()
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    let expected = [
        ("VCENTER_HOST", "vcenter.example.com"),
        ("VCENTER_USER", "haulout@vsphere.local"),
        ("VCENTER_USER_FILE", ""),
        ("VCENTER_PASSWORD", "***"),
        ("VCENTER_PASSWORD_FILE", ""),
        ("VCENTER_CA_BUNDLE", ""),
        ("VCENTER_TLS_VERIFY", "true"),
        ("VCENTER_THUMBPRINT", ""),
        ("VCENTER_REPORT", "events"),
        ("GPU_NODE_LABEL", "intel.feature.node.kubernetes.io/gpu=true"),
        (
            "GPU_RESOURCES",
            "nvidia.com/*,amd.com/*,gpu.intel.com/*,gpu.nvidia.com,gpu.amd.com,gpu.intel.com",
        ),
        ("NODE_BINDING", "uuid"),
        ("VCENTER_SCOPE", ""),
        ("NODE_MAINTENANCE_HISTORY", "20"),
        ("FOREIGN_NODE_MAINTENANCES", "none"),
        ("MAINTENANCE_TAINT", "until-power-on"),
        ("OUT_OF_SERVICE_TAINT", "false"),
        ("GUARDS", "all"),
        ("MANAGEMENT_KUBECONFIG", ""),
        ("REQUIRE_APPROVAL", "false"),
        ("MAX_CONCURRENT_DRAINS", "1"),
        ("MAX_UNAVAILABLE", "unlimited"),
        ("MAX_UNAVAILABLE_GPUS", "unlimited"),
        ("MAX_POWER_OFFS_PER_HOUR", "unlimited"),
        ("LIMIT_GROUP_LABEL", ""),
        ("POLL_INTERVAL_SECONDS", "30"),
        ("DRAIN_TIMEOUT_SECONDS", "600"),
        ("DRAIN_TIMEOUT_ACTION", "power-off"),
        ("DRAIN_WAIT_MAX_SECONDS", "3600"),
        ("VOLUME_DETACH_TIMEOUT_SECONDS", "120"),
        ("GUEST_SHUTDOWN_TIMEOUT_SECONDS", "120"),
        ("POWER_ON_TIMEOUT_SECONDS", "300"),
        ("MAINTENANCE_RETRY_GRACE_SECONDS", "10"),
        ("VMOTION_GRACE_SECONDS", "300"),
        ("HOOK_TIMEOUT_SECONDS", "3600"),
        ("HOOK_TIMEOUT_ACTION", "hold"),
        ("STATIC_DEVICES", "wait"),
        ("HOST_SETTLE_SECONDS", "60"),
        ("LEADER_ELECTION", "auto"),
        ("LEASE_NAME", "haulout"),
        ("LEASE_NAMESPACE", ""),
        ("LEASE_KUBECONFIG", ""),
        ("ADOPT_RELEASES", ""),
        ("LEASE_DURATION_SECONDS", "15"),
        ("LEASE_RENEW_DEADLINE_SECONDS", "10"),
        ("LOG_FORMAT", "text"),
        ("LOG_LEVEL", "info"),
        ("LOG_LEVEL_FILE", ""),
        ("METRICS_ADDRESS", "[::]:8080"),
        ("HEALTH_ADDRESS", "[::]:8081"),
        ("STATUS_ADDRESS", "off"),
        ("STATUS_HOSTS", ""),
        ("STATUS_TOKEN_FILE", ""),
        ("NOTIFY_URL_FILE", ""),
        ("TRACE_UI_URL_TEMPLATE", ""),
        ("DRY_RUN", "false"),
        ("ALERTMANAGER_URL_FILE", ""),
        ("SILENCE_NODE_LABEL", "node"),
        ("SILENCE_MATCHERS", ""),
        ("TEST_TIMINGS", ""),
    ];
    assert_eq!(described, expected);
}

#[test]
fn each_wrong_value_is_named_with_its_flag_and_what_is_expected() {
    // The setting, values that are wrong, and what the message says.
    let cases: &[(&str, &[&str], &str)] = &[
        (
            "POLL_INTERVAL_SECONDS",
            &["0", "3601", "-1", "1.5", "30s", "x"],
            "from 1 to 3600",
        ),
        (
            "DRAIN_TIMEOUT_SECONDS",
            &["0", "604801", "ten"],
            "from 1 to 604800",
        ),
        ("DRAIN_WAIT_MAX_SECONDS", &["-1", "604801"], "from 0 to 604800"),
        (
            "VOLUME_DETACH_TIMEOUT_SECONDS",
            &["-1", "86401"],
            "from 0 to 86400",
        ),
        (
            "GUEST_SHUTDOWN_TIMEOUT_SECONDS",
            &["0", "86401"],
            "from 1 to 86400",
        ),
        ("POWER_ON_TIMEOUT_SECONDS", &["0", "86401"], "from 1 to 86400"),
        (
            "MAINTENANCE_RETRY_GRACE_SECONDS",
            &["0", "86401"],
            "from 1 to 86400",
        ),
        (
            "VMOTION_GRACE_SECONDS",
            &["-1", "86401", "never"],
            "from 0 to 86400 is expected, or unlimited",
        ),
        ("HOST_SETTLE_SECONDS", &["-1", "86401"], "from 0 to 86400"),
        ("HOOK_TIMEOUT_SECONDS", &["0", "604801"], "from 1 to 604800"),
        (
            "LIMIT_GROUP_LABEL",
            &["pool=a", "a,b", "!pool"],
            "the key of a label",
        ),
        ("HOOK_TIMEOUT_ACTION", &["skip", "park"], "proceed or hold"),
        (
            "GUARDS",
            &["karpenter", "medik8s,", "maintenance-taint"],
            "all, none or a list of",
        ),
        (
            "MAINTENANCE_TAINT",
            &["true", "always"],
            "off or until-power-on or until-back",
        ),
        ("ADOPT_RELEASES", &["Team A", "a//b"], "lower-case letters"),
        (
            "MAX_CONCURRENT_DRAINS",
            &["0", "1001", "-1", "all"],
            "1 to 1000 nodes",
        ),
        (
            "MAX_UNAVAILABLE",
            &["0", "10001", "0%", "101%", "%", "half"],
            "1 to 10000 or 1% to 100%",
        ),
        (
            "MAX_POWER_OFFS_PER_HOUR",
            &["0", "10001", "0%", "101%"],
            "1 to 10000 or 1% to 100%",
        ),
        (
            "MAX_UNAVAILABLE_GPUS",
            &["0", "10001", "0%", "101%", "%", "half"],
            "1 to 10000 or 1% to 100%",
        ),
        ("DRAIN_TIMEOUT_ACTION", &["off", "force"], "power-off or hold"),
        ("STATIC_DEVICES", &["move", "yes"], "wait or repoint"),
        ("VCENTER_TLS_VERIFY", &["on", "nope"], "true or false"),
        (
            "VCENTER_REPORT",
            &["on", "true", "events,", "all"],
            "none or a list of events, attribute",
        ),
        (
            "TEST_TIMINGS",
            &["retry_max", "retry_max=0", "silent=1"],
            "name of a time",
        ),
        ("NODE_BINDING", &["true", "vm"], "uuid or provider-id or name"),
        (
            "VCENTER_SCOPE",
            &["tenant a", "/dc1//vm", "cluster="],
            "inventory path (/dc1/vm/tenant-a)",
        ),
        ("NODE_MAINTENANCE_HISTORY", &["-1", "1001"], "0 to 1000"),
        (
            "FOREIGN_NODE_MAINTENANCES",
            &["all", "medik8s,", "Medik8s", "kured"],
            "none or a list of medik8s, kubevirt, nvidia",
        ),
        ("REQUIRE_APPROVAL", &["2"], "true or false"),
        ("DRY_RUN", &["maybe"], "true or false"),
        ("LEADER_ELECTION", &["on", "maybe"], "auto or true or false"),
        ("LEASE_NAME", &["A B", "-x"], "a name of 1 to 253"),
        ("LEASE_NAMESPACE", &["a/b"], "a name of 1 to 253"),
        (
            "LEASE_DURATION_SECONDS",
            &["601", "-1", "NaN", "inf", "15s"],
            "0.5 to 600 seconds",
        ),
        (
            "LEASE_RENEW_DEADLINE_SECONDS",
            &["0.4", "401"],
            "0.5 to 400 seconds",
        ),
        (
            "METRICS_ADDRESS",
            &[
                "8080",
                ":8080",
                "0.0.0.0",
                "0.0.0.0:65536",
                "localhost:8080",
                "none",
            ],
            "a port from 0 to 65535 are expected, as in 0.0.0.0:8080 or [::]:8080, or off",
        ),
        ("HEALTH_ADDRESS", &["8081"], "0.0.0.0:8081"),
        ("STATUS_ADDRESS", &["8082", "on"], "0.0.0.0:8082"),
        (
            "STATUS_HOSTS",
            &["haulout.example.com:80", "https://haulout", "-a"],
            "names without a port are expected",
        ),
        (
            "TRACE_UI_URL_TEMPLATE",
            &["jaeger/{trace_id}", "https://jaeger/trace/"],
            "{trace_id}",
        ),
        ("LOG_FORMAT", &["xml"], "text or json"),
        (
            "LOG_LEVEL",
            &["loud", "kube=", "=info", "info,", "a b=info"],
            "one of off, error, warn, info, debug, trace",
        ),
        (
            "GPU_NODE_LABEL",
            &["=x", "gpu in (", "gpu=a=b"],
            "a label selector",
        ),
    ];
    for (name, values, expected) in cases {
        let flag = read::flag(name);
        for value in *values {
            let error = problems(&[&format!("{flag}={value}")]);
            assert_eq!(error.problems.len(), 1, "{name}={value}");
            let text = error.to_string();
            assert!(
                text.contains(&format!("{name} ({flag}) is {value:?}: ")),
                "{text}"
            );
            assert!(text.contains(expected), "{text}");
        }
    }
    assert_eq!(EXIT_CODE, 2);
}

#[test]
fn every_valid_form_is_understood() {
    for (value, expected) in [
        ("TRUE", true),
        ("1", true),
        ("yes", true),
        ("false", false),
        ("0", false),
        ("No", false),
    ] {
        assert_eq!(
            with(&[&format!("--dry-run={value}")]).unwrap().dry_run,
            expected,
            "{value}"
        );
    }
    for (value, expected) in [
        ("3", Limit::Number(3)),
        ("25%", Limit::Percent(25)),
        ("unlimited", Limit::Unlimited),
    ] {
        let config = with(&["--max-unavailable", value]).unwrap();
        assert_eq!(config.pace.max_unavailable, expected);
    }
    let config = with(&[
        "--poll-interval-seconds= 1\n",
        "--lease-renew-deadline-seconds=2.5",
        "--vcenter-report=events, attribute",
        "--vmotion-grace-seconds=Unlimited",
        "--node-binding=Provider-Id",
        "--test-timings=retry_max=3,silence=9,retry_max=1",
        "--log-level=INFO,kube=debug",
        "--drain-timeout-action=Hold",
        "--hook-timeout-action=PROCEED",
        "--static-devices=Repoint",
        "--maintenance-taint=Until-Back",
        "--leader-election=False",
        "--adopt-releases=a/b, c",
        "--metrics-address=OFF",
    ])
    .unwrap();
    assert_eq!(config.poll_interval, Duration::from_secs(1));
    assert_eq!(config.leadership.retry_period(), Duration::from_millis(500));
    assert!(config.vcenter_report.events && config.vcenter_report.attribute);
    assert_eq!(config.vmotion_grace, VmotionGrace::Unlimited);
    assert_eq!(config.binding.node_binding, NodeBinding::ProviderId);
    let timings = Timings {
        retry_max: Duration::from_secs(1),
        silence: Duration::from_secs(9),
        ..Timings::default()
    };
    assert_eq!(config.timings(), timings);
    assert_eq!(config.log_level, "info,kube=debug");
    assert_eq!(config.drain_timeout_action, DrainTimeoutAction::Hold);
    assert_eq!(config.hook_timeout_action, HookTimeoutAction::Proceed);
    assert_eq!(config.static_devices, StaticDevices::Repoint);
    assert_eq!(config.maintenance_taint, MaintenanceTaint::UntilBack);
    assert_eq!(config.leadership.election, LeaderElection::Off);
    assert_eq!(
        config.leadership.adopted(),
        ["a/b".to_owned(), "c".to_owned()].into()
    );
    assert_eq!(config.metrics_address, Listen::Off);
}

#[test]
fn a_flag_without_a_value_counts_as_not_set() {
    let config = with(&[
        "--vcenter-user-file=",
        "--vcenter-ca-bundle= ",
        "--poll-interval-seconds=",
        "--max-unavailable=",
        "--dry-run=",
    ])
    .unwrap();
    assert_eq!(config.poll_interval, Duration::from_secs(30));
    assert_eq!(config.vcenter_ca_bundle, None);
    assert_eq!(config.pace.max_unavailable, Limit::Unlimited);
    assert!(!config.dry_run);
}

#[test]
fn all_wrong_settings_are_reported_at_once() {
    let error = read(&[
        "--vcenter-password-file=/run/password",
        "--vcenter-password=s3cret",
        "--poll-interval-seconds",
        "0",
        "--drain-timeout-action=kill",
        "--lease-duration-seconds=1",
    ]);
    let text = error.map(|_| ()).unwrap_err().to_string();
    assert_eq!(text.lines().count(), 7, "{text}");
    for args in [
        "VCENTER_HOST (--vcenter-host) is not set",
        "VCENTER_USER (--vcenter-user) is not set: it or VCENTER_USER_FILE is expected",
        "VCENTER_PASSWORD_FILE=/run/password is set as well; one of the two is expected",
        "POLL_INTERVAL_SECONDS (--poll-interval-seconds) is \"0\"",
        "DRAIN_TIMEOUT_ACTION (--drain-timeout-action) is \"kill\": power-off or hold is expected",
        "LEASE_DURATION_SECONDS (--lease-duration-seconds) is \"1\"",
    ] {
        assert!(text.contains(args), "{text}");
    }
    assert!(!text.contains("s3cret"));
}

#[test]
fn control_characters_of_a_value_are_not_shown() {
    let config = with(&["--vcenter-user-file=", "--gpu-resources=nvidia.com/*,a\u{1b}[2J"]).unwrap();
    assert!(!config.line().contains(char::is_control), "{:?}", config.line());
    let error = problems(&["--vcenter-password-file=/run/a\u{1b}[2J\nb"]).to_string();
    assert_eq!(error.lines().count(), 2, "{error:?}");
    assert!(!error.contains('\u{1b}'), "{error:?}");
}

#[test]
fn a_list_is_shown_whole() {
    let config = with(&["--adopt-releases=a/b,c"]).unwrap();
    assert!(
        config.line().contains(" ADOPT_RELEASES=a/b,c "),
        "{}",
        config.line()
    );
}

#[test]
fn wrong_command_line_is_reported_by_clap() {
    for args in [
        &["run", "--no-such-flag"][..],
        &["run", "--lease-name"],
        &["list", "--output", "xml"],
    ] {
        let args = ["haulout"].iter().chain(args).map(OsString::from);
        let Err(ArgsError::CommandLine(error)) = Cli::read(args) else {
            panic!("it is refused");
        };
        assert_eq!(error.exit_code(), i32::from(EXIT_CODE));
    }
}

#[test]
fn ca_bundle_takes_precedence_over_no_verification() {
    let unverified = "--vcenter-tls-verify=false";
    assert!(!with(&[unverified]).unwrap().verifies_tls());
    let bundle = "--vcenter-ca-bundle=/etc/ca.pem";
    assert!(with(&[unverified, bundle]).unwrap().verifies_tls());
}

#[test]
fn no_secret_is_in_any_output() {
    let config = read(&[
        "--vcenter-host=https://root:s3cret@vcenter.example.com/sdk",
        "--vcenter-user=haulout",
        "--vcenter-password=s3cret",
    ])
    .unwrap();
    let redacted = [
        format!("{:?}", config.describe()),
        config.line(),
        format!("{:?}", config.vcenter_credentials().password),
    ];
    for text in redacted {
        assert!(!text.contains("s3cret"), "{text}");
    }
}

#[test]
fn the_line_names_what_is_set_and_nothing_else() {
    let line = with(&["--gpu-node-label=gpu in (a, b)"]).unwrap().line();
    for args in [
        "VCENTER_HOST=vcenter.example.com VCENTER_USER=",
        "VCENTER_PASSWORD=*** ",
        "GPU_NODE_LABEL=\"gpu in (a, b)\" ",
        " DRY_RUN=false",
    ] {
        assert!(line.contains(args), "{line}");
    }
    assert!(
        !line.contains("VCENTER_CA_BUNDLE") && !line.contains('\n'),
        "{line}"
    );
}

#[test]
fn every_setting_has_one_name_in_the_environment_and_on_the_command_line() {
    let command = Cli::command();
    let run = command.find_subcommand("run").unwrap();
    for arg in run.get_arguments().filter(|arg| arg.get_id() != "help") {
        let name = arg.get_env().unwrap().to_str().unwrap();
        assert_eq!(format!("--{}", arg.get_long().unwrap()), read::flag(name));
        assert!(arg.get_help_heading().is_some(), "{name}");
    }
}

#[test]
fn the_range_in_the_help_is_the_one_that_is_checked() {
    let command = Cli::command();
    let run = command.find_subcommand("run").unwrap();
    let mut ranges = 0;
    for arg in run.get_arguments() {
        let help = arg.get_help().unwrap().to_string();
        let range = help
            .rsplit_once(" (")
            .and_then(|(_, range)| range.strip_suffix(')'));
        let ends = range.and_then(|range| range.split_once(" to "));
        let Some((min, max)) =
            ends.and_then(|(min, max)| Some((min.parse::<f64>().ok()?, max.parse::<f64>().ok()?)))
        else {
            continue;
        };
        ranges += 1;
        // The settings of the Lease also depend on each other, so only errors about their own range count.
        let is_in_range = |value: f64| {
            let flag = format!("--{}={value}", arg.get_long().unwrap());
            let problems = with(&[&flag]).map_or_else(|error| error.to_string(), |_| String::new());
            !problems.contains(&format!("{max}"))
        };
        assert!(is_in_range(min) && is_in_range(max), "{help}");
        assert!(!is_in_range(min - 0.01) && !is_in_range(max + 1.0), "{help}");
    }
    assert_eq!(ranges, 13);
}

#[test]
fn a_boolean_flag_needs_no_value() {
    Cli::command().debug_assert();
    let config = with(&["--dry-run", "--vcenter-tls-verify=false", "--leader-election"]).unwrap();
    assert!(config.dry_run);
    assert!(!config.verifies_tls());
    assert_eq!(config.leadership.election, LeaderElection::On);
    let version = Cli::try_parse_from(["haulout", "version"]).unwrap().command;
    assert!(
        matches!(version, Command::Subcommand(subcommand) if matches!(*subcommand, Subcommand::Version(_)))
    );
}

/// What a setting that changes in mid-episode does to an episode that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InMidEpisode {
    /// Decisions read it; `crates/core/tests/laws/settings.rs` says how that is tested.
    Core,
    /// It decides which VM or which record is the node's. docs/how-to/change-settings.md says what to do.
    Identity,
    /// An effect or a watch reads it, and nothing in a record depends on it.
    Program,
    /// How vCenter or Kubernetes is reached.
    Connection,
    Shown,
    /// Not a setting.
    Other,
}

/// Each field of a struct, with its class. A field that is missing here does not compile.
macro_rules! classified {
    ($of:ident { $($field:ident => $class:ident),+ $(,)? }) => {{
        // Only the names matter.
        let _ = |it: $of| { let $of { $($field: _),+ } = it; };
        vec![$((stringify!($field), InMidEpisode::$class)),+]
    }};
}

#[test]
fn each_setting_says_what_a_change_in_mid_episode_does() {
    let of_controller = classified!(Config {
        vcenter_host => Connection,
        vcenter_user => Connection,
        vcenter_user_file => Connection,
        vcenter_password => Connection,
        vcenter_password_file => Connection,
        vcenter_ca_bundle => Connection,
        vcenter_tls_verify => Connection,
        vcenter_thumbprint => Connection,
        vcenter_report => Shown,
        gpu_node_label => Identity,
        gpu_resources => Core,
        binding => Other,
        node_maintenance_history => Shown,
        foreign_node_maintenances => Core,
        maintenance_taint => Core,
        out_of_service_taint => Core,
        guards => Core,
        management_kubeconfig => Connection,
        pace => Other,
        poll_interval => Core,
        drain_timeout => Core,
        drain_timeout_action => Core,
        drain_wait_max => Core,
        volume_detach_timeout => Core,
        guest_shutdown_timeout => Core,
        power_on_timeout => Core,
        maintenance_retry_grace => Core,
        vmotion_grace => Core,
        hook_timeout => Core,
        hook_timeout_action => Core,
        static_devices => Core,
        host_settle => Core,
        leadership => Other,
        log_format => Shown,
        log_level => Shown,
        log_level_file => Shown,
        metrics_address => Shown,
        health_address => Shown,
        status_page => Shown,
        notify_url_file => Shown,
        trace_ui_url_template => Shown,
        dry_run => Program,
        alertmanager => Shown,
        test_timings => Other,
        effective => Other,
    });
    let of_binding = classified!(BindingSettings {
        node_binding => Identity,
        vcenter_scope => Identity,
    });
    let of_pace = classified!(PaceSettings {
        require_approval => Core,
        max_concurrent_drains => Core,
        max_unavailable => Core,
        max_unavailable_gpus => Core,
        max_power_offs_per_hour => Core,
        limit_group_label => Core,
    });
    let classes = [of_controller, of_binding, of_pace].concat();
    let page = include_str!("../../docs/how-to/change-settings.md");
    // What an administrator has to know is on the page: each setting that decisions or the identity of a node depend on.
    let command = crate::cli::Cli::command();
    let run = command.find_subcommand("run").unwrap();
    for (field, class) in classes {
        let is_told = matches!(class, InMidEpisode::Core | InMidEpisode::Identity);
        let argument = run.get_arguments().find(|argument| argument.get_id() == field);
        let name = argument
            .and_then(|it| it.get_env())
            .and_then(|name| name.to_str());
        if let (true, Some(name)) = (is_told, name) {
            assert!(page.contains(&format!("`{name}`")), "{name} is not on the page");
        }
    }
}
