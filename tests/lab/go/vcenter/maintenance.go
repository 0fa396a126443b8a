package main

import (
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// stoppedMs is the time after which DRS registers a VM elsewhere that went off
// on a host that enters maintenance mode.
const stoppedMs = 2000

// entering is an Enter Maintenance Mode that has not ended. The simulator ends
// it at once; a vCenter waits until no VM on the host is powered on, which
// never happens by itself for a VM with a passthrough device.
type entering struct {
	host    *host
	task    *simulator.Task
	who     caller
	since   time.Time
	timeout *time.Timer
	// off is evacuatePoweredOffVms: VMs that are off have to leave the host
	// too.
	off bool
	// leaving are the VMs that DRS is about to register elsewhere.
	leaving map[types.ManagedObjectReference]bool
	// ready is false until the minimum duration of the task has passed.
	ready bool
}

// EnterMaintenanceModeTask implements the SOAP method.
func (v *VCenter) EnterMaintenanceModeTask(ctx *simulator.Context, req *types.EnterMaintenanceMode_Task) soap.HasFault {
	v.mu.Lock()
	defer v.mu.Unlock()
	evacuate := req.EvacuatePoweredOffVms != nil && *req.EvacuatePoweredOffVms
	t := v.enter(v.hosts[req.This], time.Duration(req.Timeout)*time.Second, evacuate, callerOf(ctx))
	return &methods.EnterMaintenanceMode_TaskBody{Res: &types.EnterMaintenanceMode_TaskResponse{Returnval: t.Self}}
}

// enter starts Enter Maintenance Mode. The mutex is held.
func (v *VCenter) enter(h *host, timeout time.Duration, evacuateOff bool, who caller) *simulator.Task {
	t := v.newTask(who, "EnterMaintenanceMode_Task", h.HostSystem)
	t.Info.Cancelable = true
	if fault, delay := v.faults.taskError("EnterMaintenanceMode_Task", h.Self, h.Name, nil); fault != nil {
		v.publish(t)
		v.later(delay, func() { v.finish(t, nil, fault) })
		return t
	}
	switch {
	case !v.connected(h):
		v.publish(t)
		v.finish(t, nil, &types.HostNotConnected{})
		return t
	case v.leaving(h):
		v.publish(t)
		v.finish(t, nil, &types.InvalidState{})
		return t
	}
	progress := int32(2)
	t.Info.Progress = progress
	e := &entering{host: h, task: t, who: who, since: t.Info.QueueTime, off: evacuateOff, leaving: map[types.ManagedObjectReference]bool{}}
	v.entering[h.Self] = e
	v.publish(t)
	v.journal.add(Entry{Kind: "maintenance", User: who.User, Session: who.Session, Object: h.Name, Ref: h.Self.Value, Task: t.Self.Value, Detail: "entering"})
	if timeout > 0 {
		e.timeout = time.AfterFunc(timeout, func() {
			v.mu.Lock()
			defer v.mu.Unlock()
			if v.entering[h.Self] == e {
				v.endEntering(e, &types.Timedout{}, caller{User: "vpxd"})
				v.settle()
			}
		})
	}
	v.evacuate(h, evacuateOff)
	v.shutDownMarked(h)
	v.stopAgents(h)
	v.later(v.spec.Delays.EnterMs, func() {
		e.ready = true
		v.settle()
	})
	v.bump()
	return t
}

// endEntering ends a running Enter Maintenance Mode, with success if the fault
// is nil.
func (v *VCenter) endEntering(e *entering, fault types.BaseMethodFault, who caller) {
	delete(v.entering, e.host.Self)
	if e.timeout != nil {
		e.timeout.Stop()
	}
	detail := "entered"
	if isNil(fault) {
		v.setMaintenance(e.host, true)
	} else {
		detail = "not entered: " + faultName(fault)
	}
	// The flag is set first: a client that sees the task succeed may rely on
	// it.
	v.finish(e.task, nil, fault)
	v.journal.add(Entry{Kind: "maintenance", User: who.User, Session: who.Session, Object: e.host.Name, Ref: e.host.Self.Value, Task: e.task.Self.Value, Detail: detail})
}

// loseTasks ends the Enter Maintenance Mode tasks in error, as a restart does
// that long-running operations do not survive. A host that was entering goes on
// by itself: it is in maintenance when no VM on it is powered on.
func (v *VCenter) loseTasks() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, e := range v.entering {
		delete(v.entering, e.host.Self)
		v.alone[e.host.Self] = e.host
		if e.timeout != nil {
			e.timeout.Stop()
		}
		v.finish(e.task, nil, &types.SystemError{Reason: "vpxd was restarted"})
		v.journal.add(Entry{Kind: "maintenance", User: e.who.User, Object: e.host.Name, Ref: e.host.Self.Value, Task: e.task.Self.Value, Detail: "task lost"})
	}
	v.bump()
}

func (v *VCenter) setMaintenance(h *host, in bool) {
	v.set(h.HostSystem, "runtime.inMaintenanceMode", in, "summary.runtime.inMaintenanceMode", in)
}

// settleMaintenance ends Enter Maintenance Mode on hosts without a powered-on
// VM, or without any VM if the powered-off ones have to leave too.
func (v *VCenter) settleMaintenance() {
	for _, e := range v.entering {
		if e.off {
			v.evacuateStopped(e)
		}
		if e.ready && !v.occupied(e.host, e.off) {
			v.endEntering(e, nil, e.who)
			v.bump()
		}
	}
	for ref, h := range v.alone {
		if !v.occupied(h, false) {
			delete(v.alone, ref)
			v.setMaintenance(h, true)
			v.journal.add(Entry{Kind: "maintenance", Object: h.Name, Ref: ref.Value, Detail: "entered"})
			v.bump()
		}
	}
}

// evacuateStopped registers VMs that went off on another host, as DRS does some
// seconds later; it does not look for their devices there.
func (v *VCenter) evacuateStopped(e *entering) {
	for ref, g := range v.guests {
		if v.hostOf(g) != e.host || v.on(g) || e.leaving[ref] || v.behavior(g) != types.DrsBehaviorFullyAutomated {
			continue
		}
		e.leaving[ref] = true
		v.later(stoppedMs, func() {
			defer v.settle()
			if v.entering[e.host.Self] != e || v.hostOf(g) != e.host || v.on(g) || v.busy[ref] != nil {
				delete(e.leaving, ref)
				return
			}
			if target := v.registrable(g, e.host); target != nil {
				v.moveTo(g, target, nil, nil, caller{User: "DRS"})
			}
		})
	}
}

// registrable is a host of the same cluster where a VM can be registered, with
// or without its devices.
func (v *VCenter) registrable(g *guest, from *host) *host {
	for _, h := range v.hostsOf(v.clusterOf(from)) {
		if h != from && v.connected(h) && !v.leaving(h) {
			return h
		}
	}
	return nil
}

// occupied is true while a VM on the host is powered on, or registered if off
// is set, or while a task that started earlier moves a VM to the host or away
// from it.
func (v *VCenter) occupied(h *host, off bool) bool {
	for ref, g := range v.guests {
		here := v.hostOf(g) == h
		if here && (off || v.on(g)) {
			return true
		}
		if b := v.busy[ref]; b != nil && (here || b.target != nil && *b.target == h.Self) {
			return true
		}
	}
	return false
}

// ExitMaintenanceModeTask implements the SOAP method.
func (v *VCenter) ExitMaintenanceModeTask(ctx *simulator.Context, req *types.ExitMaintenanceMode_Task) soap.HasFault {
	v.mu.Lock()
	defer v.mu.Unlock()
	t := v.exit(v.hosts[req.This], callerOf(ctx))
	return &methods.ExitMaintenanceMode_TaskBody{Res: &types.ExitMaintenanceMode_TaskResponse{Returnval: t.Self}}
}

func (v *VCenter) exit(h *host, who caller) *simulator.Task {
	t := v.newTask(who, "ExitMaintenanceMode_Task", h.HostSystem)
	v.publish(t)
	if fault, delay := v.faults.taskError("ExitMaintenanceMode_Task", h.Self, h.Name, nil); fault != nil {
		v.later(delay, func() { v.finish(t, nil, fault) })
		return t
	}
	if !h.Runtime.InMaintenanceMode {
		v.finish(t, nil, &types.InvalidState{})
		return t
	}
	v.later(v.spec.Delays.ExitMs, func() {
		v.setMaintenance(h, false)
		v.finish(t, nil, nil)
		v.journal.add(Entry{Kind: "maintenance", User: who.User, Session: who.Session, Object: h.Name, Ref: h.Self.Value, Task: t.Self.Value, Detail: "exited"})
		v.settle()
	})
	return t
}

// DisconnectHostTask implements the SOAP method.
func (v *VCenter) DisconnectHostTask(ctx *simulator.Context, req *types.DisconnectHost_Task) soap.HasFault {
	t := v.connectTask(ctx, "DisconnectHost_Task", req.This, types.HostSystemConnectionStateDisconnected)
	return &methods.DisconnectHost_TaskBody{Res: &types.DisconnectHost_TaskResponse{Returnval: t}}
}

// ReconnectHostTask implements the SOAP method.
func (v *VCenter) ReconnectHostTask(ctx *simulator.Context, req *types.ReconnectHost_Task) soap.HasFault {
	t := v.connectTask(ctx, "ReconnectHost_Task", req.This, types.HostSystemConnectionStateConnected)
	return &methods.ReconnectHost_TaskBody{Res: &types.ReconnectHost_TaskResponse{Returnval: t}}
}

func (v *VCenter) connectTask(ctx *simulator.Context, method string, ref types.ManagedObjectReference, state types.HostSystemConnectionState) types.ManagedObjectReference {
	v.mu.Lock()
	defer v.mu.Unlock()
	h := v.hosts[ref]
	t := v.newTask(callerOf(ctx), method, h.HostSystem)
	v.publish(t)
	v.setConnection(h, state, callerOf(ctx))
	v.finish(t, nil, nil)
	return t.Self
}

// setConnection changes the connection of a host and of its VMs, which a
// vCenter cannot reach either.
func (v *VCenter) setConnection(h *host, state types.HostSystemConnectionState, who caller) {
	v.set(h.HostSystem, "runtime.connectionState", state, "summary.runtime.connectionState", state)
	vmState := types.VirtualMachineConnectionStateConnected
	if state != types.HostSystemConnectionStateConnected {
		vmState = types.VirtualMachineConnectionStateDisconnected
	}
	for _, g := range v.guests {
		if v.hostOf(g) == h {
			v.set(g.VirtualMachine, "runtime.connectionState", vmState, "summary.runtime.connectionState", vmState)
		}
	}
	v.journal.add(Entry{Kind: "host", User: who.User, Session: who.Session, Object: h.Name, Ref: h.Self.Value, Detail: string(state)})
	v.settle()
}
