package main

import (
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// PowerOnVMTask implements the SOAP method. DRS places the VM if it is fully
// automated for it; else the VM starts where it is, or on the requested host if
// that is suited.
func (v *VCenter) PowerOnVMTask(ctx *simulator.Context, req *types.PowerOnVM_Task) soap.HasFault {
	v.mu.Lock()
	defer v.mu.Unlock()
	g := v.guests[req.This]
	ref := v.powerOn(g, req.Host, v.behavior(g), callerOf(ctx))
	return &methods.PowerOnVM_TaskBody{Res: &types.PowerOnVM_TaskResponse{Returnval: ref}}
}

// powerOn starts the task; level is the DRS level of the VM.
func (v *VCenter) powerOn(g *guest, wanted *types.ManagedObjectReference, level types.DrsBehavior, who caller) types.ManagedObjectReference {
	var target *host
	var device string
	return v.startVM(who, g, work{
		method: "PowerOnVM_Task",
		delay:  v.spec.Delays.PowerOnMs,
		where: func() *host {
			if h, _ := v.placePowerOn(g, wanted, level); h != nil {
				return h
			}
			return v.hostOf(g)
		},
		check: func() types.BaseMethodFault {
			if v.on(g) {
				return &types.InvalidPowerState{
					RequestedState: types.VirtualMachinePowerStatePoweredOn,
					ExistingState:  g.Runtime.PowerState,
				}
			}
			var fault types.BaseMethodFault
			if target, fault = v.placePowerOn(g, wanted, level); isNil(fault) {
				device, fault = v.claim(g, target)
			}
			return fault
		},
		target: func() *types.ManagedObjectReference { return &target.Self },
		device: func() string { return device },
		// The VM is registered on the host before it starts there.
		begin: func() {
			if target != v.hostOf(g) {
				v.moveTo(g, target, nil, nil, caller{User: "DRS"})
			}
		},
		run: func() (any, types.BaseMethodFault) { return nil, v.start(g, target, who) },
	})
}

// start boots a VM on a host. It fails if the VM's device is not available.
func (v *VCenter) start(g *guest, h *host, who caller) types.BaseMethodFault {
	device, fault := v.claim(g, h)
	if fault != nil {
		return fault
	}
	g.device = device
	g.boots++
	v.bind(g, h)
	now := time.Now()
	v.setPower(g, types.VirtualMachinePowerStatePoweredOn, who, "",
		"runtime.bootTime", now, "summary.runtime.bootTime", now,
		"runtime.cleanPowerOff", false,
		"guest.toolsRunningStatus", toolsWhenOn(g))
	if ms := g.spec.DiesAfterMs; ms > 0 {
		v.inBoot(g, ms, func() { v.stop(g, caller{User: guestUser}, "died") })
	}
	return nil
}

// guestUser is the user in the journal for what a guest does by itself.
const guestUser = "guest"

// toolsWhenOn is the state of VMware Tools of a running VM.
func toolsWhenOn(g *guest) string {
	if g.spec.Tools != nil && !*g.spec.Tools {
		return string(types.VirtualMachineToolsRunningStatusGuestToolsNotRunning)
	}
	return string(types.VirtualMachineToolsRunningStatusGuestToolsRunning)
}

// reboot is a new boot without a change of the power state.
func (v *VCenter) reboot(g *guest, detail string, who caller, cause string) {
	if g.shutdown != nil {
		g.shutdown.Stop()
		g.shutdown = nil
	}
	g.boots++
	now := time.Now()
	v.set(g.VirtualMachine,
		"runtime.bootTime", now, "summary.runtime.bootTime", now,
		"guest.toolsRunningStatus", toolsWhenOn(g))
	v.journal.add(Entry{Kind: "power", User: who.User, Session: who.Session, Object: g.Name, Ref: g.Self.Value, Detail: detail, Cause: cause})
	v.bump()
}

// stop ends the run of a VM.
func (v *VCenter) stop(g *guest, who caller, cause string) {
	if g.shutdown != nil {
		g.shutdown.Stop()
		g.shutdown = nil
	}
	if h := v.hostOf(g); h != nil {
		v.release(g, h)
	}
	v.setPower(g, types.VirtualMachinePowerStatePoweredOff, who, cause,
		"runtime.bootTime", nil, "summary.runtime.bootTime", nil,
		"runtime.cleanPowerOff", true,
		"guest.toolsRunningStatus", string(types.VirtualMachineToolsRunningStatusGuestToolsNotRunning))
}

func (v *VCenter) setPower(g *guest, state types.VirtualMachinePowerState, who caller, cause string, more ...any) {
	v.set(g.VirtualMachine, append([]any{"runtime.powerState", state, "summary.runtime.powerState", state}, more...)...)
	entry := Entry{Kind: "power", User: who.User, Session: who.Session, Object: g.Name, Ref: g.Self.Value, Detail: string(state), Cause: cause}
	if h := v.hostOf(g); h != nil {
		entry.Host = h.Name
	}
	v.journal.add(entry)
	v.settle()
}

// PowerOffVMTask implements the SOAP method. For a VM that is off, the task
// fails and not the call.
func (v *VCenter) PowerOffVMTask(ctx *simulator.Context, req *types.PowerOffVM_Task) soap.HasFault {
	v.mu.Lock()
	defer v.mu.Unlock()
	ref := v.powerOff(v.guests[req.This], callerOf(ctx))
	return &methods.PowerOffVM_TaskBody{Res: &types.PowerOffVM_TaskResponse{Returnval: ref}}
}

func (v *VCenter) powerOff(g *guest, who caller) types.ManagedObjectReference {
	off := func() types.BaseMethodFault {
		if v.on(g) {
			return nil
		}
		return &types.InvalidPowerState{
			RequestedState: types.VirtualMachinePowerStatePoweredOff,
			ExistingState:  g.Runtime.PowerState,
		}
	}
	return v.startVM(who, g, work{
		method: "PowerOffVM_Task",
		delay:  v.spec.Delays.PowerOffMs,
		check:  off,
		run: func() (any, types.BaseMethodFault) {
			// The guest may have shut down in the meantime.
			if fault := off(); fault != nil {
				return nil, fault
			}
			v.stop(g, who, "PowerOffVM_Task")
			return nil, nil
		},
	})
}

// ResetVMTask implements the SOAP method: off and on at once, too fast for a
// client that watches heartbeats.
func (v *VCenter) ResetVMTask(ctx *simulator.Context, req *types.ResetVM_Task) soap.HasFault {
	v.mu.Lock()
	defer v.mu.Unlock()
	ref := v.reset(v.guests[req.This], callerOf(ctx))
	return &methods.ResetVM_TaskBody{Res: &types.ResetVM_TaskResponse{Returnval: ref}}
}

func (v *VCenter) reset(g *guest, who caller) types.ManagedObjectReference {
	return v.startVM(who, g, work{
		method: "ResetVM_Task",
		check: func() types.BaseMethodFault {
			if v.on(g) {
				return nil
			}
			return &types.InvalidPowerState{
				RequestedState: types.VirtualMachinePowerStatePoweredOn,
				ExistingState:  g.Runtime.PowerState,
			}
		},
		run: func() (any, types.BaseMethodFault) {
			v.reboot(g, "reset", who, "ResetVM_Task")
			return nil, nil
		},
	})
}

// ShutdownGuest implements the SOAP method: it returns at once, without a task;
// the guest shuts down later, or never.
func (v *VCenter) ShutdownGuest(ctx *simulator.Context, req *types.ShutdownGuest) soap.HasFault {
	v.mu.Lock()
	defer v.mu.Unlock()
	body := &methods.ShutdownGuestBody{}
	if fault := v.shutdownGuest(v.guests[req.This], callerOf(ctx)); fault != nil {
		body.Fault_ = soapFault(fault)
		return body
	}
	body.Res = &types.ShutdownGuestResponse{}
	return body
}

func (v *VCenter) shutdownGuest(g *guest, who caller) types.BaseMethodFault {
	if !v.on(g) {
		return &types.InvalidPowerState{
			RequestedState: types.VirtualMachinePowerStatePoweredOn,
			ExistingState:  g.Runtime.PowerState,
		}
	}
	if h := v.hostOf(g); h == nil || !v.connected(h) {
		return &types.HostNotConnected{}
	}
	if b := v.busy[g.Self]; b != nil {
		return &types.TaskInProgress{Task: b.task}
	}
	if g.Guest.ToolsRunningStatus != string(types.VirtualMachineToolsRunningStatusGuestToolsRunning) {
		return &types.ToolsUnavailable{}
	}
	if g.spec.IgnoreShutdown || g.shutdown != nil {
		return nil
	}
	if ms := g.spec.ToolsStopMs; ms > 0 {
		v.inBoot(g, ms, func() {
			v.set(g.VirtualMachine, "guest.toolsRunningStatus", string(types.VirtualMachineToolsRunningStatusGuestToolsNotRunning))
			v.bump()
		})
	}
	g.shutsDown = who
	g.shutdown = v.inBoot(g, g.spec.ShutdownMs, func() {
		if !g.spec.OwnGuest {
			v.guestEnded(g)
		}
	})
	v.bump()
	return nil
}

// guestEnded is the end of a guest by itself, whether it was asked to shut down
// or not.
func (v *VCenter) guestEnded(g *guest) {
	switch {
	case g.shutdown == nil:
		v.stop(g, caller{User: guestUser}, "died")
	case g.spec.Reboots:
		v.reboot(g, "rebooted", g.shutsDown, "ShutdownGuest")
	default:
		v.stop(g, g.shutsDown, "ShutdownGuest")
	}
}
