//! Drains by Haulout, by `kubectl drain` and by a minimal client, with a real kube-apiserver.
//!
//! Three cases: many pods without a budget, pods behind a budget that allows one at a time, and many nodes at once
//! while another client reads.

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    unreachable_pub,
    reason = "a bench is a program for a person at a prompt, and reads the clock"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use futures::stream::{StreamExt as _, TryStreamExt as _};
use haulout_lab::figures::{FigureTable, Samples, is_quick, is_set};
use haulout_lab::fixture::Fixture;
use haulout_lab::kube::{AuditEvent, Kube, KubeOptions, User};
use haulout_lab::kubelet::EXITS_AFTER_MS;
use haulout_lab::process;
use haulout_lab::vcenter::Collector;
use haulout_lab::wait::until;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use k8s_openapi::api::policy::v1::{Eviction, PodDisruptionBudget};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, watcher};
use serde_json::json;
use tokio::runtime::{Builder, Handle};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

#[path = "support/client.rs"]
mod client;
#[path = "support/datacenter.rs"]
mod datacenter;
#[allow(dead_code, reason = "each bench uses its part")]
#[path = "support/used.rs"]
mod used;

const KUBECTL: &str = "/usr/bin/kubectl";

/// The timeout of a drain. `kubectl` needs most of a minute for 200 pods, and five seconds for each pod behind the
/// budget.
const WAIT_TIMEOUT: Duration = Duration::from_secs(300);

/// The timeout of a fleet with 20,000 pods.
const FLEET_TIMEOUT: Duration = Duration::from_secs(1800);

/// Concurrent requests that create or evict pods.
const AT_ONCE: usize = 32;

/// The heartbeat of a fleet's kubelets: a quarter of the node monitor grace, as in production. At the lab's one second
/// they would be most of the kube-apiserver's load.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// The node monitor grace (`--node-monitor-grace-period`, its default).
const NODE_MONITOR_GRACE: Duration = Duration::from_secs(50);

/// The pause between two reads of the other client, which would itself use all free CPU without one.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// The interval of reading the audit log, which is parsed completely each time.
const BETWEEN_AUDITS: Duration = Duration::from_secs(1);

/// Attempts to create a pod.
const POSTS_MAX: usize = 3;

/// Nodes that Haulout drains one after the other without a pause.
const IN_A_ROW: usize = 5;

/// The time in which a pod ends.
const ENDS_MS: &str = "500";

/// No limit, and the usual values of times that fixtures shorten.
const CHANGES: [(&str, &str); 3] = [
    ("MAX_CONCURRENT_DRAINS", "1000"),
    ("DRAIN_TIMEOUT_SECONDS", "3600"),
    ("TEST_TIMINGS", "eviction_retry=5,retry_max=30"),
];

/// The size of a run.
struct Size {
    rounds: usize,
    pods: usize,
    held_rounds: usize,
    held: usize,
    nodes: usize,
    pods_of_each: usize,
    idle_looks: usize,
}

impl Size {
    fn choose() -> Self {
        if is_quick() {
            Self {
                rounds: 1,
                pods: 200,
                held_rounds: 1,
                held: 10,
                nodes: 5,
                pods_of_each: 40,
                idle_looks: 200,
            }
        } else {
            Self {
                rounds: 3,
                pods: 200,
                held_rounds: 5,
                held: 20,
                nodes: 200,
                // With 100 each, two cores need more than 15 minutes to create and end 20,000 pods.
                pods_of_each: if is_full() { 100 } else { 20 },
                // In each of three phases.
                idle_looks: 500,
            }
        }
    }
}

/// Whether only the fleet with 100 pods on each node is requested.
fn is_full() -> bool {
    is_set("FULL_FLEET") && !is_quick()
}

/// The measurement of a drain.
struct Drain {
    took: Duration,
    requests: usize,
    events: usize,
}

fn main() -> anyhow::Result<()> {
    // `cargo test --benches` runs a bench without this argument.
    if !std::env::args().any(|argument| argument == "--bench") {
        return Ok(());
    }
    let neighbours = Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("neighbour")
        .enable_all()
        .build()?;
    tokio::runtime::Runtime::new()?.block_on(measure(neighbours.handle()))
}

async fn measure(neighbours: &Handle) -> anyhow::Result<()> {
    let size = Size::choose();
    let kube = Kube::start(&KubeOptions {
        audit_reads: true,
        node_monitor_grace: NODE_MONITOR_GRACE,
        ..KubeOptions::default()
    })
    .await?;
    let mut table = FigureTable::new("drain");
    let mut only = std::env::var("ONLY").unwrap_or_default();
    if is_full() {
        table.bench = "drain_full_fleet".into();
        table.command = format!("FULL_FLEET=1 {}", table.command);
        only = "fleet".into();
    }
    if only.is_empty() || only == "free" {
        free(&kube, &size, &mut table).await?;
    }
    if only.is_empty() || only == "held" {
        held(&kube, &size, &mut table).await?;
    }
    if only.is_empty() || only == "fleet" {
        fleet(&kube, &size, neighbours, &mut table).await?;
    }
    table.note("A stand-in for the kubelet ends the pods; every tested waits for the same one.");
    table.note(
        "Requests are those of the client's own user in the audit log, reads included, from its cordon to its end, but for the \
         watches of Nodes and NodeMaintenances that stand all the time and are renewed each minute; \
         Haulout's Events on pods are counted apart, because its publisher writes them one at a time beside the drain.",
    );
    println!("{}", table.markdown());
    table.keep(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("figures"))?;
    kube.stop().await
}

/// Many pods without a budget.
async fn free(kube: &Kube, size: &Size, table: &mut FigureTable) -> anyhow::Result<()> {
    let case = format!("{} pods, no budget", size.pods);
    let nodes = size.rounds * (2 + IN_A_ROW);
    let fixture = datacenter::fixture(kube, "free", nodes, Collector::Own, |_, _| {}).await?;
    let haulout = datacenter::start(&fixture, &CHANGES).await?;
    let mut seen = Results::default();
    let mut number = 0..;
    let mut next = || number.next().unwrap();
    for _ in 0..size.rounds {
        let (of_baseline, of_kubectl) = (next(), next());
        for number in [of_baseline, of_kubectl] {
            fill(&fixture, &fixture.node_name(&datacenter::vm(number)), size.pods).await?;
        }
        let node = fixture.node_name(&datacenter::vm(of_baseline));
        seen.baseline.push(baseline(kube, &node, of_baseline).await?);
        if Path::new(KUBECTL).exists() {
            let node = fixture.node_name(&datacenter::vm(of_kubectl));
            seen.kubectl.push(kubectl(kube, &node, of_kubectl).await?);
        }
        let row: Vec<usize> = (0..IN_A_ROW).map(|_| next()).collect();
        for number in &row {
            fill(&fixture, &fixture.node_name(&datacenter::vm(*number)), size.pods).await?;
        }
        let since = Timestamp::now();
        let mut drains = Vec::new();
        for number in &row {
            drains.push(by_haulout(&fixture, *number).await?);
        }
        let events = events_since(&fixture, since, IN_A_ROW * size.pods).await? / IN_A_ROW;
        let last = drains.pop().context("no drain")?;
        let first = drains.swap_remove(0);
        seen.haulout.push(Drain { events, ..first });
        seen.last.push(last);
    }
    haulout.stop().await?;
    seen.report(table, &case);
    table.target(&case, WALL, "haulout", 1.3);
    table.target(&case, WALL, LAST, 1.3);
    let count = f64::from(u32::try_from(size.pods)?);
    table.target(&case, REQUESTS, "haulout", (count + 10.0) / (count + 3.0));
    Ok(())
}

/// Pods of a ReplicaSet behind a budget that allows one at a time. Their replacements start on another node.
async fn held(kube: &Kube, size: &Size, table: &mut FigureTable) -> anyhow::Result<()> {
    let case = format!("{} pods, a budget of one at a time", size.held);
    // The last node gets the replacements.
    let fixture =
        datacenter::fixture(kube, "held", 3 * size.held_rounds + 1, Collector::Own, |_, _| {}).await?;
    let refuge = fixture.node_name(&datacenter::vm(3 * size.held_rounds));
    let haulout = datacenter::start(&fixture, &CHANGES).await?;
    let mut seen = Results::default();
    for round in 0..size.held_rounds {
        for tested in 0..3 {
            let number = 3 * round + tested;
            let node = fixture.node_name(&datacenter::vm(number));
            let app = format!("web{number}");
            guarded(&fixture, &app, &node, &refuge, size.held).await?;
            match tested {
                0 => seen
                    .baseline
                    .push(budget_baseline(kube, &fixture, &app, &node, number).await?),
                1 if Path::new(KUBECTL).exists() => seen.kubectl.push(kubectl(kube, &node, number).await?),
                1 => {}
                _ => {
                    let since = Timestamp::now();
                    let drain = by_haulout(&fixture, number).await?;
                    let events = events_since(&fixture, since, size.held).await?;
                    seen.haulout.push(Drain { events, ..drain });
                }
            }
        }
    }
    haulout.stop().await?;
    seen.report(table, &case);
    table.target(&case, WALL, "haulout", 1.3);
    Ok(())
}

/// Many nodes at once, while another client reads.
async fn fleet(kube: &Kube, size: &Size, neighbours: &Handle, table: &mut FigureTable) -> anyhow::Result<()> {
    let case = format!("{} nodes of {} pods at once", size.nodes, size.pods_of_each);
    let fixture = datacenter::fixture(kube, "fleet", size.nodes, Collector::Own, |member, _| {
        member.machine.heartbeat = HEARTBEAT;
    })
    .await?;
    let neighbour = Neighbour::on(neighbours, kube).await?;
    let mut idle = Samples::default();
    // The evictions alone: the load on the kube-apiserver, etcd, controllers and kubelets is the same for any client.
    println!("{case}: the baseline; first the pods are made …");
    fill_all(&fixture, size).await?;
    idle = neighbour.looks(size.idle_looks, idle).await?;
    println!("they are evicted …");
    let client = client::of(kube, &User::admin("baseline-fleet".to_owned())).await?;
    let began = Instant::now();
    let beside_baseline = neighbour.looks_during(evict_all(&client, &fixture)).await?;
    let baseline_took = began.elapsed();
    println!("{case}: Haulout; first the pods are made …");
    fill_all(&fixture, size).await?;
    idle = neighbour.looks(size.idle_looks, idle).await?;
    println!("they are evicted …");
    table.row(&case, "another client, idle", GET, &idle);
    let wall: Samples = [baseline_took.as_secs_f64() * 1e3].into_iter().collect();
    table.row(&case, "baseline", WALL, &wall);
    table.row(
        &case,
        "another client, during the baseline",
        GET,
        &beside_baseline,
    );
    let haulout = datacenter::start(&fixture, &CHANGES).await?;
    for pid in [haulout.pid(), fixture.vcenter.pid()].into_iter().flatten() {
        yields(pid)?;
    }

    let began = Timestamp::now();
    for number in 0..size.nodes {
        fixture
            .vcenter
            .enter_maintenance(&datacenter::host(number))
            .await?;
    }
    let drained = async {
        let nodes: Api<Node> = Api::all(fixture.client());
        until("every node to be drained", FLEET_TIMEOUT, async || {
            // A list of all Nodes is large and would disturb the other client.
            tokio::time::sleep(Duration::from_secs(1)).await;
            let list = nodes
                .list(&ListParams::default().labels(&haulout_lab::fixture::label("fleet")))
                .await?;
            let is_through = |node: &Node| {
                let phase = haulout_lab::fixture::phase(node);
                phase.is_some_and(|phase| !["queued", "draining"].contains(&phase.to_lowercase().as_str()))
            };
            Ok(list.items.iter().all(is_through).then_some(()))
        })
        .await
        .with_context(|| fixture.log_text())
    };
    let busy = neighbour.looks_during(drained).await?;
    let took = Timestamp::now().duration_since(began);
    let used = haulout.pid().map(used::used).transpose()?;
    haulout.stop().await?;

    let requests = kube.requests().await?;
    let own = requests.iter().filter(|it| it.user == fixture.user().name());
    let mut kinds: BTreeMap<(&str, &str, &str), usize> = BTreeMap::new();
    for it in own.clone() {
        let of = it.subresource.as_deref().unwrap_or_default();
        *kinds.entry((&it.resource, of, &it.verb)).or_default() += 1;
    }
    let kinds = kinds.into_iter().map(|((resource, of, verb), count)| match of {
        "" => format!("{verb} {resource} {count}"),
        of => format!("{verb} {resource}/{of} {count}"),
    });
    let kinds = kinds.collect::<Vec<_>>().join(", ");
    table.note(format!(
        "{case}: what Haulout asked for, from its start to its end: {kinds}."
    ));
    // A request may be logged twice.
    let evictions: BTreeMap<_, &AuditEvent> = own
        .filter(|it| it.subresource.as_deref() == Some("eviction"))
        .map(|it| ((it.received, &it.name), it))
        .collect();
    let evictions: Vec<&AuditEvent> = evictions.into_values().collect();
    // A remaining pod would shorten the drain.
    let accepted: BTreeSet<_> = evictions
        .iter()
        .filter(|it| it.code == 201)
        .map(|it| &it.name)
        .collect();
    ensure!(
        accepted.len() == size.nodes * size.pods_of_each,
        "only {} pods were evicted of {} nodes with {} each",
        accepted.len(),
        size.nodes,
        size.pods_of_each
    );
    let wall: Samples = [took.as_secs_f64() * 1e3].into_iter().collect();
    table.row(&case, "haulout", WALL, &wall);
    let evicted = [evictions.len()].map(number).into_iter().collect();
    table.row(&case, "haulout", "evictions", &evicted);
    let most = [most_at_once(&evictions)].map(number).into_iter().collect();
    table.row(&case, "haulout", "evictions in flight, most", &most);
    let peak = used.map(|used| used.peak_mib);
    table.row(&case, "haulout", "peak MiB", &peak.into_iter().collect());
    let cpu = used.map(|used| used.cpu_seconds);
    table.row(&case, "another client, during haulout's", GET, &busy);
    table.row(&case, "haulout", "CPU s", &cpu.into_iter().collect());
    table.compare(&case, WALL, "baseline");
    table.compare(&case, GET, "another client, idle");
    table.note(
        "A fleet's baseline evicts the same pods, at most 32 requests in flight, and does nothing else: what another client waits for \
         meanwhile is the evictions' own, because apiserver, etcd, controllers and a stand-in kubelet for each node share \
         this machine's cores. Haulout and the vCenter, which elsewhere run on other machines, have the least priority.",
    );
    Ok(())
}

/// Gives a process the least priority. Haulout and vCenter have their own machines elsewhere: only the cost of their
/// requests to the kube-apiserver is to be seen, not the sharing of its cores.
fn yields(pid: u32) -> anyhow::Result<()> {
    const LEAST: i32 = 19;
    // On Linux each thread has its own priority; later threads inherit it.
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let thread = thread?.file_name().to_string_lossy().parse()?;
        rustix::process::setpriority_process(rustix::process::Pid::from_raw(thread), LEAST)?;
    }
    Ok(())
}

/// Creates the pods on each node of the fleet.
async fn fill_all(fixture: &Fixture<'_>, size: &Size) -> anyhow::Result<()> {
    let nodes = (0..size.nodes).map(|number| fixture.node_name(&datacenter::vm(number)));
    futures::stream::iter(nodes)
        .map(Ok)
        .try_for_each_concurrent(8, async |node| fill(fixture, &node, size.pods_of_each).await)
        .await
}

/// Evicts all pods of the fixture with bounded concurrency, and waits until none is left.
async fn evict_all(client: &kube::Client, fixture: &Fixture<'_>) -> anyhow::Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), fixture.name());
    let all = pods.list(&ListParams::default()).await?.items;
    let metadata: Api<PartialObjectMeta<Pod>> = Api::namespaced(client.clone(), fixture.name());
    let mut changes = pin!(watcher(metadata, watcher::Config::default()));
    let evictions = futures::stream::iter(all)
        .map(Ok)
        .try_for_each_concurrent(AT_ONCE, async |pod| evict(client.clone(), pod).await);
    let gone = async {
        let mut remaining = BTreeSet::new();
        let mut is_listed = false;
        while !is_listed || !remaining.is_empty() {
            match changes.next().await.context("the watch ended")? {
                Ok(watcher::Event::Init) => {
                    remaining.clear();
                    is_listed = false;
                }
                Ok(watcher::Event::InitApply(pod)) => drop(remaining.insert(pod.metadata.uid)),
                Ok(watcher::Event::InitDone) => is_listed = true,
                Ok(watcher::Event::Delete(pod)) => drop(remaining.remove(&pod.metadata.uid)),
                Ok(watcher::Event::Apply(_)) => {}
                // It restarts with a list when the kube-apiserver finds it too slow.
                Err(error) => println!("the watch of all pods broke: {error}"),
            }
        }
        anyhow::Ok(())
    };
    tokio::try_join!(evictions, gone)?;
    Ok(())
}

/// Another client of the kube-apiserver, with its own runtime so that it does not wait for 200 simulated kubelets.
struct Neighbour<'r> {
    client: kube::Client,
    runtime: &'r Handle,
}

impl<'r> Neighbour<'r> {
    async fn on(runtime: &'r Handle, kube: &Kube) -> anyhow::Result<Self> {
        let kubeconfig = kube.kubeconfig(&User::admin("neighbour"))?;
        // A client's connections are driven by the runtime in which it was made.
        let client = runtime.spawn(client::from(kubeconfig)).await??;
        Ok(Self { client, runtime })
    }

    /// The latency of this many reads, in addition to `felt`.
    async fn looks(&self, count: usize, felt: Samples) -> anyhow::Result<Samples> {
        let looks = look_on(self.client.clone(), count, felt, CancellationToken::new());
        self.runtime.spawn(looks).await?
    }

    /// The latency of its reads while `work` runs.
    async fn looks_during(&self, work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<Samples> {
        let done = CancellationToken::new();
        let mut looks = self.runtime.spawn(look_on(
            self.client.clone(),
            usize::MAX,
            Samples::default(),
            done.clone(),
        ));
        let _ends_with_the_work = done.drop_guard_ref();
        tokio::select! {
            biased;
            looks = &mut looks => {
                looks??;
                bail!("another client had enough before the work was done");
            }
            worked = work => worked?,
        }
        done.cancel();
        looks.await?
    }
}

/// Reads this many times, or until it is stopped.
async fn look_on(
    client: kube::Client,
    count: usize,
    mut felt: Samples,
    done: CancellationToken,
) -> anyhow::Result<Samples> {
    for _ in 0..count {
        felt.add_ms(look(&client).await?);
        if done
            .run_until_cancelled(tokio::time::sleep(BETWEEN_LOOKS))
            .await
            .is_none()
        {
            break;
        }
    }
    Ok(felt)
}

const LAST: &str = "haulout, fifth in a row";
const WALL: &str = "wall ms";
const REQUESTS: &str = "requests";
const EVENTS: &str = "events on pods";
const GET: &str = "GET ms";

#[derive(Default)]
struct Results {
    baseline: Vec<Drain>,
    kubectl: Vec<Drain>,
    haulout: Vec<Drain>,
    /// Haulout's fifth drain in a row.
    last: Vec<Drain>,
}

impl Results {
    fn report(&self, table: &mut FigureTable, case: &str) {
        let all = [
            ("baseline", &self.baseline),
            ("kubectl drain", &self.kubectl),
            ("haulout", &self.haulout),
            (LAST, &self.last),
        ];
        for (who, drains) in all {
            if drains.is_empty() && who == LAST {
                continue;
            }
            if drains.is_empty() {
                table.note(format!(
                    "{case}: there is no {KUBECTL} here, so {who} was not measured."
                ));
                continue;
            }
            let wall: Samples = drains.iter().map(|it| it.took.as_secs_f64() * 1e3).collect();
            let requests: Samples = drains.iter().map(|it| number(it.requests)).collect();
            table.row(case, who, WALL, &wall);
            table.row(case, who, REQUESTS, &requests);
        }
        let events: Samples = self.haulout.iter().map(|it| number(it.events)).collect();
        table.row(case, "haulout", EVENTS, &events);
        table.compare(case, WALL, "baseline");
        table.compare(case, REQUESTS, "baseline");
    }
}

/// Creates pods on `node` and waits until all are Ready.
async fn fill(fixture: &Fixture<'_>, node: &str, count: usize) -> anyhow::Result<()> {
    let pods: Api<Pod> = Api::namespaced(fixture.client(), fixture.name());
    let mut made = futures::stream::iter(0..count)
        .map(|index| {
            let pod: Result<Pod, _> = serde_json::from_value(json!({
                "metadata": {"name": format!("{node}-{index}"), "labels": {"app": node}, "annotations": {EXITS_AFTER_MS: ENDS_MS}},
                "spec": spec(node),
            }));
            let pods = &pods;
            async move { make(pods, &pod?).await }
        })
        .buffer_unordered(AT_ONCE);
    while let Some(made) = made.next().await {
        made?;
    }
    ready(fixture, node, count).await
}

/// Creates a pod. After a closed connection, a retry shows whether the POST was done.
async fn make(pods: &Api<Pod>, pod: &Pod) -> anyhow::Result<()> {
    let mut tries = 0;
    loop {
        tries += 1;
        match pods.create(&PostParams::default(), pod).await {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(status)) if tries > 1 && status.is_already_exists() => return Ok(()),
            Err(error) if tries == POSTS_MAX || matches!(error, kube::Error::Api(_)) => {
                return Err(error).context("creating a pod");
            }
            Err(error) => println!("a pod is to be created again: {error}"),
        }
    }
}

fn spec(node: &str) -> serde_json::Value {
    json!({
        "nodeName": node, "terminationGracePeriodSeconds": 5,
        "containers": [{"name": "main", "image": "lab.invalid/none"}],
    })
}

async fn ready(fixture: &Fixture<'_>, node: &str, count: usize) -> anyhow::Result<()> {
    let pods: Api<Pod> = Api::namespaced(fixture.client(), fixture.name());
    let params = ListParams::default().fields(&format!("spec.nodeName={node}"));
    until(&format!("{count} pods on {node}"), WAIT_TIMEOUT, async || {
        // Repeated lists of a hundred pods would be a load of their own.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let ready = pods
            .list(&params)
            .await?
            .items
            .iter()
            .filter(|pod| is_ready(pod))
            .count();
        Ok((ready >= count).then_some(()))
    })
    .await
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|it| it.conditions.iter().flatten());
    conditions
        .clone()
        .any(|it| it.type_ == "Ready" && it.status == "True")
}

/// A ReplicaSet with pods on `node`, replacements on `refuge`, and a budget that allows one disruption.
async fn guarded(
    fixture: &Fixture<'_>,
    app: &str,
    node: &str,
    refuge: &str,
    count: usize,
) -> anyhow::Result<()> {
    let sets: Api<ReplicaSet> = Api::namespaced(fixture.client(), fixture.name());
    let set: ReplicaSet = serde_json::from_value(json!({
        "metadata": {"name": app},
        "spec": {
            "replicas": count, "selector": {"matchLabels": {"app": app}},
            "template": {"metadata": {"labels": {"app": app}, "annotations": {EXITS_AFTER_MS: ENDS_MS}}, "spec": spec(node)},
        },
    }))?;
    sets.create(&PostParams::default(), &set)
        .await
        .context("creating a ReplicaSet")?;
    ready(fixture, node, count).await?;
    let elsewhere = Patch::Merge(json!({"spec": {"template": {"spec": {"nodeName": refuge}}}}));
    sets.patch(app, &PatchParams::default(), &elsewhere).await?;
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(fixture.client(), fixture.name());
    let budget: PodDisruptionBudget = serde_json::from_value(json!({
        "metadata": {"name": app}, "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": app}}},
    }))?;
    budgets.create(&PostParams::default(), &budget).await?;
    until("the budget to be counted", WAIT_TIMEOUT, async || {
        let status = budgets.get(app).await?.status;
        Ok(status
            .is_some_and(|it| it.disruptions_allowed == Some(1))
            .then_some(()))
    })
    .await
}

/// A minimal client: cordon, list, evict with bounded concurrency, and watch until all are gone.
async fn baseline(kube: &Kube, node: &str, number: usize) -> anyhow::Result<Drain> {
    let user = User::admin(format!("baseline-{number}"));
    let client = client::of(kube, &user).await?;
    let began = Instant::now();
    let since = Timestamp::now();
    let (mut remaining, version) = cordon_and_list(&client, node).await?;
    let pods: Api<Pod> = Api::all(client.clone());
    let params = WatchParams::default().fields(&format!("spec.nodeName={node}"));
    let mut watch = pin!(pods.watch(&params, &version).await?);
    let all: Vec<Pod> = remaining.values().cloned().collect();
    let evictions = futures::stream::iter(all)
        .map(|pod| evict(client.clone(), pod))
        .buffer_unordered(AT_ONCE)
        .try_for_each(|()| async { Ok(()) });
    let gone = async {
        while !remaining.is_empty() {
            match watch.try_next().await?.context("the watch ended")? {
                WatchEvent::Deleted(pod) => {
                    remaining.remove(&pod.metadata.uid.unwrap_or_default());
                }
                WatchEvent::Error(error) => bail!("{error:?}"),
                WatchEvent::Added(_) | WatchEvent::Modified(_) | WatchEvent::Bookmark(_) => {}
            }
        }
        Ok(())
    };
    tokio::try_join!(evictions, gone)?;
    let took = began.elapsed();
    count(kube, &user, node, since, Timestamp::now(), took).await
}

/// The time that a budget itself takes: evicts at once when the budget allows.
async fn budget_baseline(
    kube: &Kube,
    fixture: &Fixture<'_>,
    app: &str,
    node: &str,
    number: usize,
) -> anyhow::Result<Drain> {
    let user = User::admin(format!("baseline-held-{number}"));
    let client = client::of(kube, &user).await?;
    let began = Instant::now();
    let since = Timestamp::now();
    let (remaining, _) = cordon_and_list(&client, node).await?;
    let mut waiting: Vec<Pod> = remaining.values().cloned().collect();
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), fixture.name());
    let own = watcher::Config::default().fields(&format!("metadata.name={app}"));
    let mut changes = pin!(watcher(budgets, own));
    while !waiting.is_empty() {
        let allowed = match changes.try_next().await?.context("the watch ended")? {
            watcher::Event::Apply(budget) | watcher::Event::InitApply(budget) => {
                budget.status.and_then(|it| it.disruptions_allowed)
            }
            watcher::Event::Delete(_) | watcher::Event::Init | watcher::Event::InitDone => None,
        };
        if allowed > Some(0)
            && let Some(pod) = waiting.pop()
            && evict(client.clone(), pod.clone()).await.is_err()
        {
            waiting.push(pod);
        }
    }
    let pods: Api<Pod> = Api::all(fixture.client());
    let params = ListParams::default().fields(&format!("spec.nodeName={node}"));
    until("the last pod to be gone", WAIT_TIMEOUT, async || {
        Ok(pods.list(&params).await?.items.is_empty().then_some(()))
    })
    .await?;
    let took = began.elapsed();
    count(kube, &user, node, since, Timestamp::now(), took).await
}

async fn cordon_and_list(
    client: &kube::Client,
    node: &str,
) -> anyhow::Result<(std::collections::BTreeMap<String, Pod>, String)> {
    let nodes: Api<Node> = Api::all(client.clone());
    let cordon = Patch::Strategic(json!({"spec": {"unschedulable": true}}));
    nodes.patch(node, &PatchParams::default(), &cordon).await?;
    let pods: Api<Pod> = Api::all(client.clone());
    let list = pods
        .list(&ListParams::default().fields(&format!("spec.nodeName={node}")))
        .await?;
    let version = list.metadata.resource_version.unwrap_or_default();
    let by_uid = list
        .items
        .into_iter()
        .map(|pod| (pod.metadata.uid.clone().unwrap_or_default(), pod));
    Ok((by_uid.collect(), version))
}

async fn evict(client: kube::Client, pod: Pod) -> anyhow::Result<()> {
    let (namespace, name) = (
        pod.metadata.namespace.unwrap_or_default(),
        pod.metadata.name.unwrap_or_default(),
    );
    let pods: Api<Pod> = Api::namespaced(client, &namespace);
    let eviction = Eviction {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            namespace: Some(namespace),
            ..ObjectMeta::default()
        },
        ..Eviction::default()
    };
    pods.create_subresource::<_, serde_json::Value>("eviction", &name, &PostParams::default(), &eviction)
        .await
        .with_context(|| format!("evicting {name}"))?;
    Ok(())
}

/// `kubectl drain` with the flags to evict every pod.
async fn kubectl(kube: &Kube, node: &str, number: usize) -> anyhow::Result<Drain> {
    let user = User::admin(format!("kubectl-{node}-{number}"));
    let config = kube.kubeconfig(&user)?;
    let since = Timestamp::now();
    let began = Instant::now();
    let log = kube.dir().join(format!("kubectl-{node}.log"));
    let mut drain = process::ProcessSpec::new("kubectl", KUBECTL, log)
        .args([
            "drain",
            node,
            "--force",
            "--ignore-daemonsets",
            "--delete-emptydir-data",
        ])
        .arg("--disable-eviction=false")
        .env("KUBECONFIG", config)
        .env("NO_PROXY", "127.0.0.1")
        .spawn()?;
    let status = tokio::time::timeout(WAIT_TIMEOUT, drain.wait()).await??;
    ensure!(
        status.success(),
        "kubectl drain ended with {status}: {}",
        drain.tail()
    );
    let took = began.elapsed();
    count(kube, &user, node, since, Timestamp::now(), took).await
}

/// A maintenance, measured from the cordon until the end of the drain is recorded.
async fn by_haulout(fixture: &Fixture<'_>, number: usize) -> anyhow::Result<Drain> {
    let node = fixture.node_name(&datacenter::vm(number));
    let since = Timestamp::now();
    fixture
        .vcenter
        .enter_maintenance(&datacenter::host(number))
        .await?;
    let user = fixture.user();
    let (from, to) = until(&format!("{node} to be drained"), WAIT_TIMEOUT, async || {
        tokio::time::sleep(BETWEEN_AUDITS).await;
        let audit = fixture.audit().await?;
        let mut patches = audit.iter().filter(|it| {
            it.verb == "patch"
                && it.resource == "nodes"
                && it.name.as_deref() == Some(&node)
                && it.code == 200
        });
        let begun = patches.next();
        let ended = patches.find(|it| {
            let object = it.object.as_ref().map(ToString::to_string);
            object.is_some_and(|object| object.to_lowercase().contains("shuttingdown"))
        });
        Ok(begun
            .zip(ended)
            .map(|(begun, ended)| (begun.received, ended.answered)))
    })
    .await
    .with_context(|| fixture.log_text())?;
    ensure!(from >= since, "{node} was drained before the click");
    let took = Duration::try_from(to.duration_since(from))?;
    count(fixture.kube, &user, &node, from, to, took).await
}

/// The Events on pods since then, once there are as many as `pods`, because the publisher may finish after the drain.
async fn events_since(fixture: &Fixture<'_>, since: Timestamp, pods: usize) -> anyhow::Result<usize> {
    until("the Events of the pods", WAIT_TIMEOUT, async || {
        tokio::time::sleep(BETWEEN_AUDITS).await;
        let audit = fixture.audit().await?;
        let events = audit
            .iter()
            .filter(|it| it.resource == "events" && it.received >= since);
        let events = events.filter(|it| it.namespace.as_deref() == Some(fixture.name()));
        Ok(Some(events.count()).filter(|events| *events >= pods))
    })
    .await
}

async fn count(
    kube: &Kube,
    user: &User,
    node: &str,
    since: Timestamp,
    to: Timestamp,
    took: Duration,
) -> anyhow::Result<Drain> {
    let requests = kube.requests().await?;
    let own = requests
        .iter()
        .filter(|it| it.user == user.name() && it.received >= since && it.received <= to);
    // A request may be logged twice.
    let own: BTreeSet<_> = own
        .filter(|it| it.resource != "events" && !stands(it) && !is_of_another(it, node))
        .map(|it| {
            (
                it.received,
                it.verb.clone(),
                it.name.clone(),
                it.subresource.clone(),
            )
        })
        .collect();
    Ok(Drain {
        took,
        requests: own.len(),
        events: 0,
    })
}

/// Whether it is one of the permanent watches, which are renewed each minute.
fn stands(it: &AuditEvent) -> bool {
    it.verb == "watch" && ["nodes", "nodemaintenances"].contains(&&*it.resource)
}

/// Whether it is an Event about another node's queued episode.
fn is_of_another(it: &AuditEvent, node: &str) -> bool {
    let own = format!("{node}-");
    it.resource == "nodemaintenances" && it.name.as_ref().is_some_and(|name| !name.starts_with(&own))
}

/// The latency of one small read.
async fn look(client: &kube::Client) -> anyhow::Result<Duration> {
    let began = Instant::now();
    Api::<Namespace>::all(client.clone()).get("default").await?;
    Ok(began.elapsed())
}

/// The maximum of concurrent requests.
fn most_at_once(events: &[&AuditEvent]) -> usize {
    let mut edges: Vec<(Timestamp, isize)> = events
        .iter()
        .flat_map(|event| [(event.received, 1), (event.answered, -1)])
        .collect();
    edges.sort();
    let mut now = 0_isize;
    let most = edges.iter().map(|(_, step)| {
        now += step;
        now
    });
    most.max().unwrap_or_default().unsigned_abs()
}

fn number(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::INFINITY, f64::from)
}
