"""A peer for the benches: pyVmomi's WaitForUpdatesEx over all hosts, or a poller that asks of every host what the
Python controller asks: its name, its recent tasks and their info, and whether it is in maintenance mode."""

import argparse
import json
import ssl
import time

from pyVim.connect import SmartConnect
from pyVmomi import vim, vmodl

BEGAN = time.monotonic()


def say(**line):
    print(json.dumps(line), flush=True)


def connect(a):
    context = ssl.create_default_context(cafile=a.ca)
    address = a.sdk.removeprefix("https://").removesuffix("/sdk")
    name, port = address.rsplit(":", 1)
    return SmartConnect(host=name, port=int(port), user=a.user, pwd=a.password, sslContext=context)


def is_entering(info):
    return info.descriptionId == "HostSystem.enterMaintenanceMode" and info.state in ("running", "queued")


def ready(hosts):
    say(ready=True, ns=time.time_ns(), ms=(time.monotonic() - BEGAN) * 1000, hosts=hosts)


def wait(content, view, host):
    pc, spec = vmodl.query.PropertyCollector, vmodl.query.PropertyCollector.TraversalSpec
    tasks = spec(type=vim.HostSystem, path="recentTask", skip=False)
    through = spec(type=vim.view.ContainerView, path="view", skip=False, selectSet=[tasks])
    paths = ["name", "runtime.connectionState", "runtime.inMaintenanceMode", "runtime.inQuarantineMode", "recentTask"]
    filter_spec = pc.FilterSpec(
        objectSet=[pc.ObjectSpec(obj=view, skip=True, selectSet=[through])],
        propSet=[
            pc.PropertySpec(type=vim.HostSystem, pathSet=paths),
            pc.PropertySpec(type=vim.Task, pathSet=["info"]),
        ],
    )
    collector = content.propertyCollector.CreatePropertyCollector()
    collector.CreateFilter(filter_spec, False)
    version, stands, hosts = "", False, 0
    while True:
        update = collector.WaitForUpdatesEx(version, pc.WaitOptions(maxWaitSeconds=60))
        if update is None:
            continue
        version = update.version
        for part in update.filterSet:
            for item in part.objectSet:
                hosts += isinstance(item.obj, vim.HostSystem) and item.kind == "enter"
                for change in item.changeSet:
                    if not stands or change.name != "info":
                        continue
                    info = change.val
                    if info.descriptionId == "HostSystem.enterMaintenanceMode" and info.entity._moId == host:
                        say(entering=is_entering(info), ns=time.time_ns())
        if not stands and not update.truncated:
            stands = True
            ready(hosts)


def poll(view, host, interval):
    before, stands = False, False
    while True:
        began, now = time.monotonic(), False
        for item in view.view:
            item.name
            entering = [task for task in item.recentTask if is_entering(task.info)]
            item.runtime.inMaintenanceMode
            if item._moId != host:
                continue
            if stands and bool(entering) != before:
                say(entering=bool(entering), ns=time.time_ns())
            before = bool(entering)
        if not stands:
            stands = True
            ready(len(view.view))
        say(poll=True, ms=(time.monotonic() - began) * 1000)
        time.sleep(max(0.0, interval - (time.monotonic() - began)))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("sdk", "ca", "user", "password", "host"):
        parser.add_argument(f"-{name}", required=True)
    parser.add_argument("-every", type=float, help="poll, with this many seconds from one begin to the next")
    a = parser.parse_args()
    content = connect(a).RetrieveContent()
    view = content.viewManager.CreateContainerView(content.rootFolder, [vim.HostSystem], True)
    if a.every is None:
        wait(content, view, a.host)
    else:
        poll(view, a.host, a.every)


if __name__ == "__main__":
    main()
