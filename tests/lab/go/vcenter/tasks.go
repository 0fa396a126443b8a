package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// descriptionIDs are the keys under which a real vCenter describes its tasks.
// The simulator derives its own from Go names.
var descriptionIDs = map[string]string{
	"EnterMaintenanceMode_Task":   "HostSystem.enterMaintenanceMode",
	"ExitMaintenanceMode_Task":    "HostSystem.exitMaintenanceMode",
	"PowerDownHostToStandBy_Task": "HostSystem.enterStandbyMode",
	"DisconnectHost_Task":         "HostSystem.disconnect",
	"ReconnectHost_Task":          "HostSystem.reconnect",
	"PowerOnVM_Task":              "VirtualMachine.powerOn",
	"PowerOffVM_Task":             "VirtualMachine.powerOff",
	"ResetVM_Task":                "VirtualMachine.reset",
	"RelocateVM_Task":             "VirtualMachine.relocate",
	"CheckRelocate_Task":          "VirtualMachineProvisioningChecker.checkRelocate",
	"ReconfigVM_Task":             "VirtualMachine.reconfigure",
	"PowerOnMultiVM_Task":         "Datacenter.powerOnVm",
	"vMotion":                     "Drm.ExecuteVMotionLRO",
	"ScanHostPatchV2_Task":        "HostPatchManager.scanV2",
	"CreateSnapshot_Task":         "VirtualMachine.createSnapshot",
}

// newTask registers a running task. The simulator's own tasks are not used:
// they hold the lock of their object until they end, which would hide the
// object from readers, and they replace a cancel with success.
func (v *VCenter) newTask(who caller, method string, entity mo.Entity) *simulator.Task {
	v.taskCount++
	now := time.Now()
	ref := entity.Reference()
	t := &simulator.Task{}
	t.Self = types.ManagedObjectReference{Type: "Task", Value: fmt.Sprintf("task-%d", 100000+v.taskCount)}
	t.Info = types.TaskInfo{
		Key:           t.Self.Value,
		Task:          t.Self,
		Name:          method,
		DescriptionId: descriptionIDs[method],
		Entity:        &ref,
		EntityName:    v.nameOf(ref),
		Reason:        &types.TaskReasonUser{UserName: who.User},
		QueueTime:     now,
		StartTime:     &now,
		State:         types.TaskInfoStateRunning,
		EventChainId:  int32(v.taskCount),
	}
	return t
}

// publish makes a task visible: in TaskManager.recentTask, in its entity's, and
// in the history collectors.
func (v *VCenter) publish(t *simulator.Task) types.ManagedObjectReference {
	v.suppression.taskBegins(t)
	v.makeRoom(t)
	v.reg.Put(t)
	return t.Self
}

// makeRoom removes the oldest tasks from the list that t is added to. No update
// is sent for that: the list with t follows at once.
func (v *VCenter) makeRoom(t *simulator.Task) {
	entity, ok := v.reg.Get(*t.Info.Entity).(mo.Entity)
	if most := v.spec.RecentTasks; ok && most > 0 {
		e := entity.Entity()
		e.RecentTask = slices.Clone(e.RecentTask[max(0, len(e.RecentTask)-most+1):])
	}
}

func (v *VCenter) done(t *simulator.Task) bool {
	return t.Info.State == types.TaskInfoStateSuccess || t.Info.State == types.TaskInfoStateError
}

// finish ends a task once; a second call, such as a success after a cancel,
// changes nothing.
func (v *VCenter) finish(t *simulator.Task, result any, fault types.BaseMethodFault) {
	if v.done(t) {
		return
	}
	pairs := []any{"info.completeTime", time.Now()}
	if !isNil(fault) {
		pairs = append(pairs,
			"info.error", &types.LocalizedMethodFault{Fault: plain(fault), LocalizedMessage: message(fault)},
			"info.state", types.TaskInfoStateError)
	} else {
		if result == nil {
			result = v.faults.taskResult(t)
		}
		if result != nil {
			pairs = append(pairs, "info.result", result)
		}
		pairs = append(pairs, "info.progress", int32(100), "info.state", types.TaskInfoStateSuccess)
	}
	v.set(t, pairs...)
}

// work is what a VM's task does.
type work struct {
	method string
	delay  int
	// where is the host on which the VM would be put, whether or not that is
	// possible; nil for work that does not move it.
	where func() *host
	// check runs at once; its fault ends the task before it starts.
	check func() types.BaseMethodFault
	// target is the host on which the VM is about to be put, if any.
	target func() *types.ManagedObjectReference
	// device is the address that it is about to get there, if any.
	device func() string
	// begin runs at once if check returned no fault.
	begin func()
	// run does the work, after the delay.
	run func() (any, types.BaseMethodFault)
}

// startVM starts a task on a VM and returns its reference at once. The mutex is
// held.
func (v *VCenter) startVM(who caller, g *guest, w work) types.ManagedObjectReference {
	t := v.newTask(who, w.method, g.VirtualMachine)
	ref := v.publish(t)
	// A VM on no host can only be put on one.
	if v.hostOf(g) == nil && w.method != "RelocateVM_Task" {
		v.finish(t, nil, &types.HostNotConnected{})
		return ref
	}
	var where *host
	if w.where != nil {
		where = w.where()
	}
	if fault, delay := v.faults.taskError(w.method, g.Self, g.Name, where); fault != nil {
		v.later(delay, func() { v.finish(t, nil, fault) })
		return ref
	}
	if b := v.busy[g.Self]; b != nil {
		v.finish(t, nil, &types.TaskInProgress{Task: b.task})
		return ref
	}
	if h := v.hostOf(g); h != nil && !v.connected(h) {
		v.finish(t, nil, &types.HostNotConnected{})
		return ref
	}
	if w.check != nil {
		if fault := w.check(); !isNil(fault) {
			v.finish(t, nil, fault)
			return ref
		}
	}
	b := &busy{task: ref}
	if w.target != nil {
		b.target = w.target()
	}
	if w.device != nil {
		b.device = w.device()
	}
	v.busy[g.Self] = b
	if w.begin != nil {
		w.begin()
	}
	v.later(w.delay, func() {
		delete(v.busy, g.Self)
		if v.guests[g.Self] == nil {
			v.finish(t, nil, &types.ManagedObjectNotFound{Obj: g.Self})
			return
		}
		result, fault := w.run()
		v.finish(t, result, fault)
		v.settle()
	})
	return ref
}

// later runs f with the mutex held, after a delay.
func (v *VCenter) later(ms int, f func()) {
	time.AfterFunc(time.Duration(ms)*time.Millisecond, func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		if !v.closed {
			f()
		}
	})
}

// CancelTask cancels Enter Maintenance Mode, the only task that can be
// cancelled.
func (v *VCenter) CancelTask(ctx *simulator.Context, req *types.CancelTask) soap.HasFault {
	v.mu.Lock()
	defer v.mu.Unlock()
	body := &methods.CancelTaskBody{}
	t := v.reg.Get(req.This).(*simulator.Task)
	switch {
	case v.done(t):
		body.Fault_ = soapFault(&types.InvalidState{})
	case !t.Info.Cancelable:
		body.Fault_ = soapFault(&types.NotSupported{})
	default:
		v.cancelTask(t, callerOf(ctx))
		body.Res = &types.CancelTaskResponse{}
	}
	return body
}

func (v *VCenter) cancelTask(t *simulator.Task, who caller) {
	v.set(t, "info.cancelled", true)
	for _, e := range v.entering {
		if e.task == t {
			v.endEntering(e, &types.RequestCanceled{}, who)
			v.settle()
			return
		}
	}
	v.finish(t, nil, &types.RequestCanceled{})
}

// link adds a reference to a list property and notifies the collectors; the
// property is `vm` unless named.
func (v *VCenter) link(ref types.ManagedObjectReference, obj mo.Reference, list []types.ManagedObjectReference, property ...string) {
	if slices.Contains(list, ref) {
		return
	}
	v.set(obj, append(property, "vm")[0], append(slices.Clone(list), ref))
}

// unlink removes a reference from a list property.
func (v *VCenter) unlink(ref types.ManagedObjectReference, obj mo.Reference, list []types.ManagedObjectReference, property ...string) {
	rest := slices.DeleteFunc(slices.Clone(list), func(r types.ManagedObjectReference) bool { return r == ref })
	v.set(obj, append(property, "vm")[0], rest)
}
