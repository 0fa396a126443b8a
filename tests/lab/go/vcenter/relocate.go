package main

import (
	"slices"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// RelocateVMTask implements the SOAP method. The simulator moves a VM to any
// host, applies any device change, and leaves the lists of VMs of both hosts as
// they were; a client that works with that may fail with a vCenter.
func (v *VCenter) RelocateVMTask(ctx *simulator.Context, req *types.RelocateVM_Task) soap.HasFault {
	v.mu.Lock()
	defer v.mu.Unlock()
	ref := v.relocate(v.guests[req.This], req.Spec, callerOf(ctx))
	return &methods.RelocateVM_TaskBody{Res: &types.RelocateVM_TaskResponse{Returnval: ref}}
}

func (v *VCenter) relocate(g *guest, spec types.VirtualMachineRelocateSpec, who caller) types.ManagedObjectReference {
	var target *host
	// spec.DeviceChange is ignored: a vCenter applies it to network cards and
	// disks only, and the lab's VMs have none.
	return v.startVM(who, g, work{
		method: "RelocateVM_Task",
		delay:  v.spec.Delays.RelocateMs,
		where: func() *host {
			if spec.Host != nil {
				return v.hosts[*spec.Host]
			}
			h, _ := v.relocateTarget(g, spec)
			return h
		},
		check: func() types.BaseMethodFault {
			var fault types.BaseMethodFault
			target, fault = v.relocateTarget(g, spec)
			return fault
		},
		target: func() *types.ManagedObjectReference { return &target.Self },
		run: func() (any, types.BaseMethodFault) {
			// The target may have entered maintenance mode, or begun to,
			// during the delay.
			if _, fault := v.relocateTarget(g, spec); fault != nil && !v.leaving(target) {
				return nil, fault
			}
			v.moveTo(g, target, spec.Datastore, spec.Pool, who)
			return nil, nil
		},
	})
}

func (v *VCenter) relocateTarget(g *guest, spec types.VirtualMachineRelocateSpec) (*host, types.BaseMethodFault) {
	source := v.hostOf(g)
	target := source
	if spec.Host != nil {
		if target = v.hosts[*spec.Host]; target == nil {
			return nil, &types.ManagedObjectNotFound{Obj: *spec.Host}
		}
	} else if spec.Pool != nil && !v.on(g) {
		if target = v.place(g, v.clusterOfPool(*spec.Pool), true); target == nil {
			return nil, &types.NoCompatibleHost{}
		}
	}
	cluster := v.clusterOf(target)
	if spec.Pool != nil && v.clusterOfPool(*spec.Pool) != cluster {
		return nil, &types.InvalidArgument{InvalidProperty: "spec.pool"}
	}
	if spec.Pool == nil && cluster != v.clusterOfGuest(g) {
		return nil, &types.InvalidArgument{InvalidProperty: "spec.pool"}
	}
	if target != source && (v.leaving(target) || !v.connected(target)) {
		return nil, &types.InvalidState{}
	}
	stores := v.filesOf(g)
	if spec.Datastore != nil {
		stores = []types.ManagedObjectReference{*spec.Datastore}
	}
	for _, ds := range stores {
		if !v.accesses(target, ds) {
			name := ds.Value
			if store, ok := v.reg.Get(ds).(*simulator.Datastore); ok {
				name = store.Name
			}
			return nil, &types.CannotAccessVmConfig{Reason: types.LocalizedMethodFault{
				Fault:            &types.InvalidDatastorePath{InvalidDatastore: types.InvalidDatastore{Name: name}, DatastorePath: g.Config.Files.VmPathName},
				LocalizedMessage: "Unable to access file " + g.Config.Files.VmPathName,
			}}
		}
	}
	if target != source {
		if fault := v.lacksNetwork(g, target); fault != nil {
			return nil, fault
		}
		if fault := v.lacksImage(g, target); fault != nil && fault.Connected {
			return nil, fault
		}
		if fault := v.violates(g, target); fault != nil {
			return nil, fault
		}
		if fault := v.tooNew(g, target); fault != nil {
			return nil, fault
		}
	}
	if v.on(g) && target != source {
		if device, _ := passthrough(g); device != nil {
			cause := &types.DeviceNotSupported{Device: "pciPassthru0", Reason: "host"}
			return nil, &types.DisallowedMigrationDeviceAttached{Fault: types.LocalizedMethodFault{
				Fault:            cause,
				LocalizedMessage: "Virtual machine is configured to use a device that prevents the operation: Device 'PCI device 0' is a passthrough device, which is not supported.",
			}}
		}
	}
	return target, nil
}

// moveTo puts a VM on a host and updates the lists of both hosts.
func (v *VCenter) moveTo(g *guest, target *host, store, pool *types.ManagedObjectReference, who caller) {
	source := v.hostOf(g)
	from := ""
	if source != nil {
		from = source.Name
	}
	if source != target {
		if source != nil {
			v.unlink(g.Self, source.HostSystem, source.Vm)
		}
		v.link(g.Self, target.HostSystem, target.Vm)
		v.set(g.VirtualMachine, "runtime.host", &target.Self, "summary.runtime.host", &target.Self)
	}
	if store != nil && !slices.Contains(g.Datastore, *store) {
		for _, ref := range g.Datastore {
			ds := v.reg.Get(ref).(*simulator.Datastore)
			v.unlink(g.Self, ds, ds.Vm)
		}
		ds := v.reg.Get(*store).(*simulator.Datastore)
		v.link(g.Self, ds, ds.Vm)
		v.set(g.VirtualMachine, "datastore", []types.ManagedObjectReference{*store})
	}
	if pool == nil && source != nil && v.clusterOf(source) != v.clusterOf(target) {
		pool = v.clusterOf(target).ResourcePool
	}
	if pool != nil && (g.ResourcePool == nil || *g.ResourcePool != *pool) {
		if g.ResourcePool != nil {
			old := v.reg.Get(*g.ResourcePool).(*simulator.ResourcePool)
			v.unlink(g.Self, old, old.Vm)
		}
		p := v.reg.Get(*pool).(*simulator.ResourcePool)
		v.link(g.Self, p, p.Vm)
		v.set(g.VirtualMachine, "resourcePool", pool)
	}
	v.journal.add(Entry{Kind: "move", User: who.User, Session: who.Session, Object: g.Name, Ref: g.Self.Value, Host: target.Name, Detail: from + " -> " + target.Name})
	v.bump()
}

// clusterOfGuest is the cluster of its host, or that of its resource pool if it
// is on no host.
func (v *VCenter) clusterOfGuest(g *guest) *simulator.ClusterComputeResource {
	if h := v.hostOf(g); h != nil {
		return v.clusterOf(h)
	}
	if g.ResourcePool == nil {
		return nil
	}
	return v.clusterOfPool(*g.ResourcePool)
}

// unassign takes a VM that is off from its host.
func (v *VCenter) unassign(g *guest, who caller) {
	source := v.hostOf(g)
	if source == nil {
		return
	}
	v.unlink(g.Self, source.HostSystem, source.Vm)
	v.set(g.VirtualMachine, "runtime.host", nil, "summary.runtime.host", nil)
	v.journal.add(Entry{Kind: "move", User: who.User, Session: who.Session, Object: g.Name, Ref: g.Self.Value, Detail: source.Name + " -> no host"})
	v.settle()
}

// clusterOfPool finds the cluster of a resource pool.
func (v *VCenter) clusterOfPool(ref types.ManagedObjectReference) *simulator.ClusterComputeResource {
	p, ok := v.reg.Get(ref).(*simulator.ResourcePool)
	if !ok {
		return nil
	}
	cluster, _ := v.reg.Get(p.Owner).(*simulator.ClusterComputeResource)
	return cluster
}

// ReconfigVMTask implements the SOAP method. The simulator applies the change;
// this checks whether it is allowed.
func (v *VCenter) ReconfigVMTask(ctx *simulator.Context, req *types.ReconfigVM_Task) soap.HasFault {
	v.mu.Lock()
	defer v.mu.Unlock()
	g := v.guests[req.This]
	ref := v.startVM(callerOf(ctx), g, work{
		method: "ReconfigVM_Task",
		delay:  v.spec.Delays.ReconfigMs,
		check: func() types.BaseMethodFault {
			if v.leaving(v.hostOf(g)) {
				return &types.InvalidState{}
			}
			if cv := req.Spec.ChangeVersion; cv != "" && cv != g.Config.ChangeVersion {
				return &types.ConcurrentAccess{}
			}
			return nil
		},
		run: func() (any, types.BaseMethodFault) {
			body := g.VirtualMachine.ReconfigVMTask(v.fresh(), req).(*methods.ReconfigVM_TaskBody)
			if body.Fault_ != nil {
				return nil, body.Fault_.VimFault().(types.BaseMethodFault)
			}
			inner := v.reg.Get(body.Res.Returnval).(*simulator.Task)
			inner.Wait()
			v.forget(g, inner)
			if inner.Info.Error != nil {
				return nil, inner.Info.Error.Fault
			}
			v.journal.add(Entry{Kind: "reconfigure", User: callerOf(ctx).User, Session: callerOf(ctx).Session, Object: g.Name, Ref: g.Self.Value, Detail: describeDevice(g)})
			v.bump()
			return nil, nil
		},
	})
	return &methods.ReconfigVM_TaskBody{Res: &types.ReconfigVM_TaskResponse{Returnval: ref}}
}

// forget removes the simulator's own task: the client got another one for the
// same work.
func (v *VCenter) forget(g *guest, t *simulator.Task) {
	manager := v.reg.Get(*v.model.ServiceContent.TaskManager).(*simulator.TaskManager)
	v.unlink(t.Self, g.VirtualMachine, g.RecentTask, "recentTask")
	v.unlink(t.Self, manager, manager.RecentTask, "recentTask")
	v.reg.Remove(v.fresh(), t.Self)
}
