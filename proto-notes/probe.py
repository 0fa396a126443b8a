#!/usr/bin/env python3
"""Asks a vCenter what Haulout assumes about vCenters, where neither documentation nor a public recording says it.

It reads, and creates objects in its own session, which end with its logout. The report names nothing. README.md says more.
"""
import argparse
import getpass
import json
import os
import re
import socket
import ssl
import sys
from collections import namedtuple
from datetime import timedelta
from time import monotonic
from urllib.parse import urlsplit

from pyVim.connect import Disconnect, SmartConnect
from pyVmomi import SoapAdapter, vim, vmodl

# Id, how it is answered, the question, what Haulout assumes or does so as not to depend on the answer, and what an operator sees
# if it is otherwise. open-questions.md has this table.
QUESTIONS = [row.split(" | ") for row in """
recent-task-push | watch | Is the beginning of a maintenance task pushed in `recentTask` of its host? | It need not be. The task history and the re-read find it too. | Without the push, the task history shows the maintenance after about 1 s, or the next re-read does, at most `POLL_INTERVAL_SECONDS` (30 s) later.
task-end-push | watch | Is the end of a task pushed to a client that follows the task itself? | Yes. Without it, a cancel is seen by the re-read only. | A cancel and the end of Haulout's own tasks are seen by the next re-read, at most `POLL_INTERVAL_SECONDS` (30 s) later. Power is not cut: the task is read again before.
history-begin-push | watch | Is the beginning of a maintenance task pushed in the task history? | Yes, where `recentTask` is not pushed. | Where recentTask is not pushed either, a maintenance is seen by the next re-read only, at most `POLL_INTERVAL_SECONDS` (30 s) later.
maintenance-mode-push | watch | Is a change of `runtime.inMaintenanceMode` pushed? | Yes. The re-read finds it too. | That a host entered or left maintenance mode is seen by the next re-read, at most `POLL_INTERVAL_SECONDS` (30 s) later. The VM stays off for that much longer.
long-poll | long polls | Does a long poll last as long as it was asked for? | 120 s are below the limits of vCenter and of most proxies. Where two polls in a row are cut after the same time, they get shorter. | Each cut costs a new subscription, 1 to 2 s without vCenter. After two cuts after the same time the wait is halved, to 10 s at least. Early answers cost more calls.
task-results | reading of results | Are there task results of more than 1 MiB, which is what Haulout's XML reader accepts of one text? | There may be. Results are not read, and from 8.0.3 on not sent. | Nothing changes if there are none. A page of the history over 32 MiB stops the history for 300 s; `recentTask` and the re-read still show a maintenance.
stale-rows | reading of tasks | Does the task history list an Enter Maintenance Mode that has been unfinished for more than a day? | Possible after a restart of vCenter. Such a row counts once its `Task` object was read. | A row without a `Task` is told once in the log, and nothing is drained. Without such rows nothing changes.
maintenance-task-shape | reading of tasks | Are there Enter Maintenance Mode tasks that another task began, or no user? | Such tasks of vSphere Lifecycle Manager count like those of a person. | If there are no such tasks, nothing changes: parent and user are not looked at. Only the text about who asked names no user.
maintenance-timeout | reading of tasks | Are there Enter Maintenance Mode tasks that ended with `Timedout`? | Possible. The node stays cordoned for the retry. | Any other error counts as failed as well. A timeout that ends like a cancel uncordons the node, or powers the VM on, at once; the next try drains and shuts it down again.
maintenance-cancel | reading of tasks | Are there Enter Maintenance Mode tasks that ended with `RequestCanceled`? | Yes, those that were cancelled. | A cancel counts as failed. The node stays cordoned for `MAINTENANCE_RETRY_GRACE_SECONDS` (10 s), and is uncordoned then.
exit-reason | reading of tasks | Are there Exit Maintenance Mode tasks that no user began? | Yes, those of vCenter after it reconnected. Such a host has to stay before it is used. | A host that vCenter itself took out of maintenance is used at once, not after `HOST_SETTLE_SECONDS` (60 s). If it goes down again, its VM goes off with it and is brought back again.
vmotion-task | reading of tasks | Is a vMotion by DRS a task `Drm.ExecuteVMotionLRO`? | Yes. No guest is shut down while such a task runs. | After `VMOTION_GRACE_SECONDS` (300 s) the node is drained although vCenter moves the VM. While any unfinished task is listed for the VM, its guest is still not asked and no power is cut.
binding-format | reading of hosts | Has each instance id in `assignableHardwareBinding` exactly one PCI address? | Mostly. Without one, the devices of an unreadable VM are unknown. | What the unreadable VM holds is unknown, so its host is not used and is named with that reason. The VM waits for another host or its own.
binding-static | reading of hosts | Are running VMs with a device at a fixed address in `assignableHardwareBinding`? | Unknown. Bindings are used for VMs only whose own devices cannot be read. | The device of an unreadable running VM looks free, so the VM may be moved there. vCenter refuses the power-on, and another host is tried after up to 6 attempts (half a minute).
binding-dynamic | reading of hosts | Are running VMs with a device chosen at power-on in `assignableHardwareBinding`? | Yes. An unreadable VM that is in none of a host's bindings holds no device. | The device of an unreadable running VM looks free, so the VM may be moved there. vCenter refuses the power-on, and another host is tried after up to 6 attempts (half a minute).
fixed-device-id | reading of hosts | Has each device id of a device at a fixed address the prefix `0x`? | Unknown. An id of at most four digits is not used, and the host says what is at the address. | If all ids have 0x, nothing changes. Otherwise an id of at most four digits is looked up at the VM's own host; if that does not list the device, the VM waits for its own host.
unreadable-vms | reading of hosts | Can this user read the devices of every VM on the hosts? | Not always: vCLS VMs may be hidden. Bindings say what those hold that run. | *Not certain.* A hidden VM that is off counts as holding nothing. Our VM may take its device, and vCenter then refuses the start of that VM.
inaccessible-config | reading of hosts | Have inaccessible VMs no `config`? | Yes. Such a VM is not taken for one without devices. | The devices in that config count as held, also outdated ones, so a host may be passed over and is named.
maintenance-without-task | needs a change | Does a host get into maintenance mode without a task of vCenter, where somebody enters it on the host itself? | Possible. The end of it is seen, its beginning is not. | *Not certain.* While such a host enters, nothing is drained. A VM that somebody shuts down for it is left off, as any VM that a person switches off.
relocate-static | needs a change | What does vCenter answer to the relocation of a VM that is off and has a device at a fixed address? | Unknown. Such a VM is relocated with `STATIC_DEVICES=repoint` only. | With `STATIC_DEVICES=wait` (default) nothing depends on it. With repoint, a refusal is told, no host is tried twice, and the VM waits for its own host.
power-on-without-device | needs a change | Does vCenter refuse the power-on of a VM whose device is in use or not there? | Yes. It is what makes a wrong guess about free devices harmless. | The VM runs without its GPU. The node waits for its GPUs, stays cordoned, and is parked as overdue after `POWER_ON_TIMEOUT_SECONDS`.
relocate-folder | needs a change | Does a relocation that names the folder of the VM need no other privilege? | Yes, as documented for the same operation of the Automation API. | vCenter refuses each relocation with NoPermission. The hosts are tried once each, 30 s apart, then the VM waits for its own host; the wait names the privilege.
relocate-checks | needs a change | Does the relocation of a VM that is off check neither memory nor admission control? | Possible. Memory, failover hosts and rules are judged beforehand, and a refused power-on is remembered. | If the relocation does check them, it is refused there instead of the power-on, and another host is tried. Without a check, a refused power-on is remembered for the episode.
unconnected-card | needs a change | Does a VM that was moved to a host without its standard port group start with an unconnected card? | Yes. Such a host is not used. | A host that would do is passed over ("lacks network NAME"), and the VM waits for another host or its own.
reconfigure-entering | needs a change | Can a VM that is off be reconfigured on a host that enters maintenance mode, or is in it? | Unknown. A VM is reconfigured only with `STATIC_DEVICES=repoint`, and only on a host in service. | Nothing depends on it: a VM is reconfigured only with `STATIC_DEVICES=repoint`, and only on a host in service. A refusal there leads to another host or is tried again.
drs-power-on-host | needs a change | Does `PowerOnVM_Task` with a host hold under fully automated DRS? | Yes. A VM that starts elsewhere is found there. | The VM starts on another host of the cluster, and its node rejoins there, also with strategy wait. A request for a certain host ends as failed and says so.
drs-refusal-alarms | needs a change | Does each refused power-on by DRS raise an alarm? | Possible. Attempts become slower, up to one in 30 s. | If there are none, nothing changes. Otherwise vCenter raises one for each attempt while DRS refuses: after 1, 2, 4, 8 and 16 s, then every 30 s.
rules-without-drs | needs a change | Do mandatory VM-Host rules count where DRS is off? | Yes. Such a host is not used. | A host that would do is passed over ("is excluded by the VM-Host rule NAME"), and the VM waits for another host or its own.
power-on-after-exit | needs a change | Is a power-on refused for a while after Exit Maintenance Mode, while vSphere HA configures the host? | Possible. The own host is tried six times before another one. | If it is never refused, nothing changes. After 6 refusals (half a minute) another host is looked for; without one, the own host is tried again at least every 30 s.
tools-stop-early | needs a change | Do VMware Tools stop early in a guest shutdown? | Yes. A guest that was asked keeps its time. | Nothing is cut earlier. A guest without VMware Tools that an earlier process may have asked is given `GUEST_SHUTDOWN_TIMEOUT_SECONDS` (120 s) for nothing.
entering-after-restart | needs a change | Does Enter Maintenance Mode survive a restart of vCenter? | Unknown. For a process that saw the host entering, a task that is gone without an end counts as failed; for a new one it does not exist. | If the host goes on entering without a task, its node is uncordoned after `MAINTENANCE_RETRY_GRACE_SECONDS` (10 s), or its VM is powered on there or elsewhere. Power is not cut.
login-while-starting | needs a change | Does a vCenter that starts refuse a correct password? | Yes. Credentials that were accepted before are tried again soon. | A wrong password is tried again after 10 s and 30 s, then every 180 s: 3 attempts in 3 minutes. Where fewer are allowed, the account is locked and Haulout waits for vCenter.
sub-ids | needs a change | Does 0 as subsystem id of an allowed device stand for any device? | Yes. | Hosts without a matching device are chosen. Each costs a relocation and up to 6 refused power-ons (half a minute); then the VM waits for its own host, and says so.
lifecycle-prechecks | needs a change | Does vSphere Lifecycle Manager refuse a host before it begins a task? | Possible. Nothing is seen of it. | If there is a task first, it is handled as any maintenance. If not, Haulout sees and does nothing; the node stays in service, and only vCenter shows the refusal.
live-patch | needs a change | Does a live patch power-cycle VMs with a passthrough device? | No: in the mode `quickPatchPartialMM` VMs go on running (API). Such a mode is told, and begins no episode. | **Not safe.** vCenter cuts the power without a drain. Haulout warns of the mode (log and Event, vCenter 8.0.3 and later), and it learns of it when it has begun.
attribute-in-client | needs a change | Do lists in the vSphere Client show a custom attribute as a column, and an empty value like none? | Yes. The value is set to an empty text at the end of an episode. | Only a text: lists in the vSphere Client show no column, or an empty value stays. With `VCENTER_REPORT=attribute` only.
attribute-length | needs a change | How long may the value of a custom attribute be? | At least 200 characters. | Only a text: vCenter cuts a longer value, or refuses it. Then the value from before stays, and it is tried again at least once a minute. Maintenance goes on.
vgpu-profiles | needs a change | Can a host run each profile of both lists, `sharedPassthroughGpuTypes` and `vgpuProfileInfo`? | Yes. A profile of either list counts. | A host without the profile is chosen. The power-on is refused there, and another host is tried.
task-without-end | needs a change | Does an Enter Maintenance Mode stay `running` although nothing works on it? | No. Only tasks of VMs count for at most a day. | The node is drained and its VM shut down. After 300 s the wait `host-entry` says that the host does not get into maintenance.
""".strip().splitlines()]
DEADLINE = 60  # of a call, in seconds; that of a long poll is longer by the poll
REREAD, SETTLE = 3, 9  # seconds between two readings in a watch, and for which something may be pushed after it was read
RESULTS, HOSTS, ROWS, PUSHED_ROWS, FOLLOWED = 200, 96, 500, 50, 100  # the most that is read of each
STEPS = [10, 30, 60, 120, 300, 600]  # long polls below and above the usual limits of proxies
ENTER, EXIT, KIND, STATE = "HostSystem.enterMaintenanceMode", "HostSystem.exitMaintenanceMode", "info.descriptionId", "info.state"
DRS_VMOTION, MIGRATIONS, ENDS = "Drm.ExecuteVMotionLRO", ("VirtualMachine.migrate", "VirtualMachine.relocate"), ("success", "error")
CLICKS = {ENTER: "Enter Maintenance Mode", EXIT: "Exit Maintenance Mode"}
BINDINGS, DEVICES, MODE = "config.assignableHardwareBinding", "config.hardware.device", "runtime.inMaintenanceMode"
HOSTS_IN, LISTED_IN, TASKS_OF = (vim.view.ContainerView, "view"), (vim.view.ListView, "view"), (vim.HostSystem, "recentTask")
Row = namedtuple("Row", "kind origin has_parent fault age")
Vm = namedtuple("Vm", "is_readable is_lost has_config runs is_bound fixed_ids has_dynamic")


def tell(words):
    print(f"probe: {words}", file=sys.stderr, flush=True)


# What follows from what was seen. These take plain values; an answer is a word with what it rests on.

def share(so, total, words, nothing, of_all=True):
    """Whether all of them are so, or else whether any is."""
    if not total:
        return "not seen", nothing
    return "yes" if (so == total if of_all else so) else "no", f"{so} of {total} {words}"


def each(of_all, *rows):
    """Rows of an id, what is asked, of which, and the words for some and for none of these."""
    return {key: share(sum(map(is_so, of)), len(of), words, nothing, of_all) for key, is_so, of, words, nothing in rows}


def of_tasks(rows, unfinished):
    enters, exits = ([row for row in rows if row.kind == kind] for kind in (ENTER, EXIT))
    stale = [row for row in unfinished if row.age > timedelta(days=1)]
    moves = [row for row in rows if row.kind == DRS_VMOTION or row.origin == "System" and row.kind in MIGRATIONS]
    origins, faults = ", ".join(sorted({row.origin for row in enters})), ", ".join(sorted({row.fault for row in enters if row.fault}))
    parents = sum(row.has_parent for row in enters)
    no_enter, no_exit = (f"no {words} is listed" for words in CLICKS.values())
    return each(
        False,
        ("stale-rows", lambda row: row.kind == ENTER, stale, f"rows older than a day are {CLICKS[ENTER]}", "no row is that old"),
        ("maintenance-task-shape", lambda row: row.has_parent or row.origin != "User", enters, f"tasks; by {origins}; {parents} with a parent", no_enter),
        *((key, lambda row, fault=fault: row.fault == fault, enters, f"tasks; faults: {faults or None}", no_enter)
          for key, fault in (("maintenance-timeout", "Timedout"), ("maintenance-cancel", "RequestCanceled"))),
        ("exit-reason", lambda row: row.origin != "User", exits, "tasks were not begun by a user", no_exit),
    ) | each(True, ("vmotion-task", lambda row: row.kind == DRS_VMOTION, moves, f"migrations are {DRS_VMOTION}", "none is listed"))


def of_inventory(hosts, left_out, bindings, vms):
    address = re.compile(r"(?<![0-9a-z])[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f](?![0-9a-z])", re.I)
    forms = sorted({re.sub("[0-9a-fA-F]", "0", re.sub(r"[g-zG-Z]|[^\x00-\x7f]", "x", text))[:64] for text in bindings})  # no content
    ids, lost = [text for vm in vms for text in vm.fixed_ids if text], [vm for vm in vms if vm.is_lost]
    static, dynamic = [vm for vm in vms if vm.runs and vm.fixed_ids], [vm for vm in vms if vm.runs and vm.has_dynamic]
    in_binding, no_vm, of_hosts = "VMs are in a binding", "no such VM runs on a host with bindings", f"{hosts} hosts; {left_out} were left out"
    return each(
        True,
        ("binding-format", lambda text: len(address.findall(text)) == 1, bindings, f"ids have one address, of forms {', '.join(forms[:8])}", "no binding"),
        ("binding-static", lambda vm: vm.is_bound, static, in_binding, no_vm),
        ("binding-dynamic", lambda vm: vm.is_bound, dynamic, in_binding, no_vm),
        ("fixed-device-id", lambda text: text.lower().startswith("0x"), ids, f"ids; digits only: {sum(map(str.isdecimal, ids))}", "no such device"),
        ("unreadable-vms", lambda vm: vm.is_readable, vms, f"VMs can be read on {of_hosts}", f"no VM on {of_hosts}"),
        ("inaccessible-config", lambda vm: not vm.has_config, lost, "inaccessible VMs have none", "no VM is inaccessible"),
    )


def of_polls(polls):
    """Of (seconds asked, seconds taken, how it ended). vCenter counts whole seconds."""
    lasted = [end == "answered" and took + 1 >= asked for asked, took, end in polls]
    words = "; ".join(f"{asked} s: {end} after {took:.0f} s" for asked, took, end in polls)
    return {"long-poll": share(sum(lasted), len(lasted), f"lasted: {words}", "no long poll ended")}


# What is read.

def plain(text):
    """What a version, a build or the name of a type can be at the beginning of a text."""
    return re.match(r"[A-Za-z0-9._-]{0,40}", str(text)).group()


def type_name(value):
    return plain(type(value).__name__.rsplit(".", 1)[-1])


def reason(error):
    """The class of an error. Its text may name hosts and addresses."""
    status = re.match(r"\d{3}\b", str(error))
    return f"HTTP status {status.group()}" if status else type_name(error)


def spec(start, wanted, *steps):
    """A filter: from the objects `start` along `steps` of (type, property) to the properties `wanted` of {type: paths}."""
    of, select = vmodl.query.PropertyCollector, []
    for kind, path in reversed(steps):
        select = [of.TraversalSpec(type=kind, path=path, skip=False, selectSet=select)]
    return of.FilterSpec(objectSet=[of.ObjectSpec(obj=obj, skip=False, selectSet=select) for obj in start],
                         propSet=[of.PropertySpec(type=kind, pathSet=paths) for kind, paths in wanted.items()],
                         reportMissingObjectsInResults=True)


class Vcenter:
    """A session. Views, collectors and histories end with it."""

    def __init__(self, instance):
        self.instance, self.content = instance, instance.RetrieveContent()
        self.hosts = self.content.viewManager.CreateContainerView(self.content.rootFolder, [vim.HostSystem], True)

    def read(self, start, wanted, *steps):
        """The objects, each with the properties that can be read."""
        collector, found, of = self.content.propertyCollector, [], vmodl.query.PropertyCollector
        page = collector.RetrievePropertiesEx([spec(start, wanted, *steps)], of.RetrieveOptions(maxObjects=100))
        while page:
            found += [(each.obj, {prop.name: prop.val for prop in each.propSet}) for each in page.objects]
            page = collector.ContinueRetrievePropertiesEx(page.token) if page.token else None
        return found

    def collector(self, *specs):
        collector = self.content.propertyCollector.CreatePropertyCollector()
        for each in specs:
            collector.CreateFilter(each, False)
        return collector

    def poll(self, collector, version, seconds):
        return collector.WaitForUpdatesEx(version, vmodl.query.PropertyCollector.WaitOptions(maxWaitSeconds=seconds))

    def history(self, size, **only):
        of, tasks = vim.TaskFilterSpec, self.content.taskManager
        rows = of(entity=of.ByEntity(entity=self.content.rootFolder, recursion="all"), **only)
        try:  # without results, which may be large or of a type that pyVmomi does not know; since API 8.0.3.0
            removed = vim.TaskInfoFilterSpec.FilterTaskResults(removeAll=True)
            history = tasks.CreateCollectorWithInfoFilterForTasks(rows, vim.TaskInfoFilterSpec(filterTaskResults=removed))
        except Exception:
            history = tasks.CreateCollectorForTasks(rows)
        history.SetCollectorPageSize(size)
        return spec([history], {vim.TaskHistoryCollector: ["latestPage"]})


def read_tasks(vcenter, args):
    now = vcenter.instance.CurrentTime()

    def rows(**only):
        first = vcenter.poll(vcenter.collector(vcenter.history(ROWS, **only)), "", 1)
        page = [info for part in first.filterSet for update in part.objectSet for change in update.changeSet for info in change.val or []]
        return [Row(info.descriptionId, type_name(info.reason).removeprefix("TaskReason"), bool(info.parentTaskKey),
                    info.error and type_name(info.error), now - info.queueTime) for info in page]
    return of_tasks(rows(), rows(state=["queued", "running"]))


def read_results(vcenter, args):
    """Each result is read by itself, so that a large one costs only itself."""
    listed = vcenter.read([vcenter.content.taskManager], {vim.Task: [STATE]}, (vim.TaskManager, "recentTask"))
    listed += vcenter.read([vcenter.hosts], {vim.Task: [STATE]}, HOSTS_IN, TASKS_OF)
    ended = list({task._moId: task for task, values in listed if values.get(STATE) == "success"}.values())
    results = [values.get("info.result") for task in ended[:RESULTS] for _, values in vcenter.read([task], {vim.Task: ["info.result"]})]
    sizes = [len(SoapAdapter.Serialize(value)) for value in results if value]
    words = f"tasks; {len(sizes)} have a result, the largest of {max(sizes, default=0)} bytes; {len(ended[RESULTS:])} tasks were left out"
    return {"task-results": share(sum(size > 1 << 20 for size in sizes), len(results), words, "no recent task ended with success", of_all=False)}


def read_inventory(vcenter, args):
    """Where there are too many hosts, those with bindings are read."""
    found = vcenter.read([vcenter.hosts], {vim.HostSystem: [BINDINGS]}, HOSTS_IN)
    every = [host for host, _ in sorted(found, key=lambda it: not it[1].get(BINDINGS))]
    of_vm = {vim.VirtualMachine: ["config.uuid", DEVICES, "runtime.connectionState", "runtime.powerState"]}
    found = vcenter.read(every[:HOSTS], {vim.HostSystem: [BINDINGS, "vm"], **of_vm}, (vim.HostSystem, "vm")) if every else []
    hosts = [values for obj, values in found if isinstance(obj, vim.HostSystem)]
    bindings = [binding for host in hosts for binding in host.get(BINDINGS, [])]
    held = {binding.vm._moId for binding in bindings if binding.vm}
    on_bound = {vm._moId for host in hosts if host.get(BINDINGS) for vm in host.get("vm", [])}
    device, vms = vim.vm.device.VirtualPCIPassthrough, []
    for obj, values in found:
        if isinstance(obj, vim.VirtualMachine):
            backings = [it.backing for it in values.get(DEVICES, []) if isinstance(it, device)]
            is_lost = values.get("runtime.connectionState") in ("inaccessible", "orphaned", "invalid")
            runs = values.get("runtime.powerState") == "poweredOn" and obj._moId in on_bound
            fixed = [it.deviceId or "" for it in backings if isinstance(it, device.DeviceBackingInfo)]
            dynamic = any(isinstance(it, device.DynamicBackingInfo) for it in backings)
            vms.append(Vm(DEVICES in values, is_lost, "config.uuid" in values, runs, obj._moId in held, fixed, dynamic))
    return of_inventory(len(hosts), len(every) - len(hosts), [binding.instanceId for binding in bindings], vms)


class Watch:
    """What happens while somebody clicks, and what is pushed of it. It is read as well, so that it is known without a push."""

    def __init__(self, vcenter):
        self.vcenter, self.modes, self.tasks, self.known, self.open = vcenter, {}, {}, set(), set()
        self.happened = {}  # when it was first seen: ("begin" or "end", task), or ("mode", host, how often)
        self.pushed = set()  # (way, what happened)
        self.followed = vcenter.content.viewManager.CreateListView([])

    def task(self, task, values, way=None):
        key, known = task._moId, self.tasks.get(task._moId, {}) | values  # a push has only what changed
        if key in self.known or known.get(KIND) not in CLICKS or len(self.tasks) == FOLLOWED:
            return
        self.open |= set() if known.get(STATE) in ENDS else {key}
        for what in ["begin", "end"] if known.get(STATE) in ENDS else ["begin"]:
            if (what, key) not in self.happened:
                self.happened[what, key] = monotonic()
                tell(f"{CLICKS[known[KIND]]}: {what}")
            self.pushed.add((way, (what, key)))
        if key not in self.tasks:
            self.followed.ModifyListView(add=[task])
        self.tasks[key] = known

    def take(self, obj, values, is_push, is_first=False):
        if isinstance(obj, vim.TaskHistoryCollector):
            for info in values.get("latestPage", []):
                self.known |= {info.task._moId} if is_first else set()
                self.task(info.task, {KIND: info.descriptionId, STATE: info.state}, "row")
        elif isinstance(obj, vim.Task):
            self.task(obj, values, "task" if is_push else None)
        else:
            self.pushed |= {("recentTask", ("begin", task._moId)) for task in values.get("recentTask", []) if is_push}
            if MODE in values:
                before, changes = self.modes.get(obj._moId, (values[MODE], 0))
                self.modes[obj._moId] = values[MODE], changes + (values[MODE] != before)
                what = "mode", obj._moId, self.modes[obj._moId][1]
                if what[2]:
                    self.happened.setdefault(what, monotonic())
                    self.pushed.add(("host" if is_push else None, what))

    def run(self, args):
        of_hosts, of_tasks, hosts = {vim.HostSystem: ["recentTask", MODE]}, {vim.Task: [KIND, STATE]}, [self.vcenter.hosts]
        collector = self.vcenter.collector(spec(hosts, of_hosts, HOSTS_IN), spec([self.followed], of_tasks, LISTED_IN),
                                           self.vcenter.history(PUSHED_ROWS))
        self.known |= {obj._moId for obj, _ in self.vcenter.read(hosts, of_tasks, HOSTS_IN, TASKS_OF)}
        end, version, is_first, next_read, kinds = monotonic() + args.watch, "", True, 0, set()
        try:
            while monotonic() < end and (kinds != {ENTER, EXIT} or monotonic() < max(self.happened.values()) + SETTLE):
                updates = self.vcenter.poll(collector, version, REREAD)
                for update in [update for part in updates.filterSet for update in part.objectSet] if updates else []:
                    self.take(update.obj, {it.name: it.val for it in update.changeSet if it.val is not None}, not is_first, is_first)
                version = updates.version if updates else version
                if updates and updates.truncated:
                    continue
                if is_first:
                    tell(f"watching for at most {args.watch} s: click Enter and then Exit Maintenance Mode on an EMPTY host")
                is_first = False
                if monotonic() >= next_read:
                    for obj, values in self.vcenter.read(hosts, of_hosts | of_tasks, HOSTS_IN, TASKS_OF):
                        self.take(obj, values, False)
                    next_read = monotonic() + REREAD
                kinds = {known[KIND] for known in self.tasks.values() if known.get(STATE) in ENDS}
        except KeyboardInterrupt:
            args.long_polls = None
        return {"recent-task-push": self.count("recentTask", "begin", "tasks that began"),
                "task-end-push": self.count("task", "end", "tasks that ended"),
                "history-begin-push": self.count("row", "begin", "tasks that began"),
                "maintenance-mode-push": self.count("host", "mode", "changes")}

    def count(self, by, kind, words):
        """What was read just now may still be pushed, so it is not missed. Nothing follows from an end that was seen at the beginning."""
        counts = {what: at for what, at in self.happened.items() if what[0] == kind and (kind != "end" or what[1] in self.open)}
        seen = [((by, what) in self.pushed, at) for what, at in counts.items()]
        pushed, missed = sum(is_pushed for is_pushed, _ in seen), sum(not is_pushed and monotonic() >= at + SETTLE for is_pushed, at in seen)
        return share(pushed, pushed + missed, f"{words} were pushed", "nothing of it happened in the watch")


def long_polls(vcenter, args):
    polls, collector = [], vcenter.collector(spec([vcenter.content.rootFolder], {vim.Folder: ["name"]}))
    version = vcenter.poll(collector, "", 1).version
    for asked in [step for step in STEPS if step < args.long_polls] + [args.long_polls]:
        tell(f"a long poll of {asked} s")
        began, end = monotonic(), "answered"
        try:
            vcenter.poll(collector, version, asked)
        except KeyboardInterrupt:
            break
        except Exception as error:
            end = reason(error)
        polls.append((asked, monotonic() - began, end))
        if end != "answered":
            break
    return of_polls(polls)


READERS = {"reading of tasks": read_tasks, "reading of results": read_results, "reading of hosts": read_inventory,
           "watch": lambda vcenter, args: Watch(vcenter).run(args), "long polls": long_polls}


def ask(vcenter, args):
    """The answers by id. After a Ctrl-C, and without its flag, a question is left out."""
    answers = {}
    for how, read in READERS.items():
        try:
            answers |= read(vcenter, args) if getattr(args, how.replace(" ", "_"), True) else {}
        except KeyboardInterrupt:
            break
        except Exception as error:
            answers |= {key: ("not seen", f"not read: {reason(error)}") for key, means, *_ in QUESTIONS if means == how}
    return answers


def connect(args):
    url = urlsplit(args.vcenter if "//" in args.vcenter else f"https://{args.vcenter}")
    password = os.environ.get("VCENTER_PASSWORD") or args.password_file and open(args.password_file).read().strip() or getpass.getpass()
    context = ssl._create_unverified_context() if args.insecure else ssl.create_default_context(cafile=args.ca_bundle or None)
    socket.setdefaulttimeout(DEADLINE + (args.long_polls or 0))
    return SmartConnect(protocol=url.scheme, host=url.hostname, port=url.port or 443, user=args.user, pwd=password, sslContext=context)


def table(*rows):
    """The first row is the header."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def main():
    env, parser = os.environ.get, argparse.ArgumentParser(description="Asks a vCenter what Haulout assumes about vCenters. It changes nothing.")
    parser.add_argument("--vcenter", default=env("VCENTER_HOST"), help="a name, name:port or URL (VCENTER_HOST)")
    parser.add_argument("--user", default=env("VCENTER_USER"), help="(VCENTER_USER)")
    parser.add_argument("--password-file", default=env("VCENTER_PASSWORD_FILE"), help="(VCENTER_PASSWORD_FILE, if VCENTER_PASSWORD is not set)")
    parser.add_argument("--ca-bundle", default=env("VCENTER_CA_BUNDLE"), help="PEM file with the authorities to trust (VCENTER_CA_BUNDLE)")
    parser.add_argument("--insecure", action="store_true", help="accept any certificate")
    parser.add_argument("--watch", type=int, nargs="?", const=300, metavar="SECONDS", help="watch while you click on an EMPTY host")
    parser.add_argument("--long-polls", type=int, nargs="?", const=120, metavar="LONGEST", help="try long polls up to this many seconds")
    parser.add_argument("--json", action="store_true", help="print JSON and not Markdown")
    parser.add_argument("--list", action="store_true", help="only print the questions")
    args = parser.parse_args()
    if args.list:
        return print(table(("id", "answered by", "question", "what Haulout assumes or does", "if it is otherwise"), *QUESTIONS))
    if not args.vcenter or not args.user:
        parser.error("--vcenter and --user are required")
    instance = None
    try:
        instance = connect(args)
        vcenter = Vcenter(instance)
        answers = ask(vcenter, args)
    except Exception as error:
        sys.exit(f"probe: it could not begin: {reason(error)}")
    finally:
        Disconnect(instance)
    server = {key: plain(getattr(vcenter.content.about, key)) for key in ("apiVersion", "version", "build", "productLineId")}
    rows = [(key, question, *answers.get(key, ("not seen", "left out"))) for key, how, question, *_ in QUESTIONS if how in READERS]
    changes, header = [key for key, how, *_ in QUESTIONS if how not in READERS], ("id", "question", "answer", "observed")
    if args.json:
        return print(json.dumps({"server": server, "answers": [dict(zip(header, it)) for it in rows], "needsAChange": changes}, indent=2))
    of_server = ", ".join(f"{key} {value}" for key, value in server.items())
    print(f"# Probe of a vCenter\n\n{of_server}\n\n{table(header, *rows)}\n\nNot asked, because it needs a change: {', '.join(changes)}")


if __name__ == "__main__":
    main()
