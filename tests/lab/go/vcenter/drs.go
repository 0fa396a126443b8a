package main

import (
	"sort"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// behavior is the DRS level of a VM: its own or that of the cluster. It is
// empty if DRS is off for either.
func (v *VCenter) behavior(g *guest) types.DrsBehavior {
	h := v.hostOf(g)
	if h == nil {
		return ""
	}
	config := v.clusterOf(h).ConfigurationEx.(*types.ClusterConfigInfoEx)
	if on := config.DrsConfig.Enabled; on == nil || !*on {
		return ""
	}
	level := config.DrsConfig.DefaultVmBehavior
	if allow := config.DrsConfig.EnableVmBehaviorOverrides; allow != nil && !*allow {
		return level
	}
	for _, o := range config.DrsVmConfig {
		if o.Key != g.Self {
			continue
		}
		if o.Enabled != nil && !*o.Enabled {
			return ""
		}
		if o.Behavior != "" {
			level = o.Behavior
		}
	}
	return level
}

// placesAtStart is true if DRS chooses the host of a VM at power on by itself.
func placesAtStart(level types.DrsBehavior) bool {
	return level == types.DrsBehaviorFullyAutomated || level == types.DrsBehaviorPartiallyAutomated
}

// unsuited returns why a VM cannot start on a host.
func (v *VCenter) unsuited(g *guest, h *host) types.BaseMethodFault {
	switch {
	case !v.connected(h):
		return &types.HostNotConnected{}
	case v.leaving(h):
		return &types.InvalidState{}
	}
	for _, ds := range v.filesOf(g) {
		if !v.accesses(h, ds) {
			return &types.CannotAccessVmConfig{Reason: types.LocalizedMethodFault{
				Fault:            &types.InvalidDatastorePath{DatastorePath: g.Config.Files.VmPathName},
				LocalizedMessage: "Unable to access file " + g.Config.Files.VmPathName,
			}}
		}
	}
	if v.isFailoverHost(h) {
		return &types.DisallowedOperationOnFailoverHost{Host: h.Self, Hostname: h.Name}
	}
	for _, check := range []func(*guest, *host) types.BaseMethodFault{v.lacksNetwork, v.violates, v.tooNew, v.admission} {
		if fault := check(g, h); fault != nil {
			return fault
		}
	}
	_, fault := v.claim(g, h)
	return fault
}

// hostsOf lists a cluster's hosts, those with the fewest running VMs first.
func (v *VCenter) hostsOf(cluster *simulator.ClusterComputeResource) []*host {
	running := map[*host]int{}
	for _, g := range v.guests {
		if v.on(g) {
			running[v.hostOf(g)]++
		}
	}
	var hosts []*host
	if cluster != nil {
		for _, ref := range cluster.Host {
			if h := v.hosts[ref]; h != nil {
				hosts = append(hosts, h)
			}
		}
	}
	sort.Slice(hosts, func(i, j int) bool {
		if a, b := running[hosts[i]], running[hosts[j]]; a != b {
			return a < b
		}
		return hosts[i].Name < hosts[j].Name
	})
	return hosts
}

// place chooses a host for a VM in a cluster: its own host if that is suited
// and keep is set.
func (v *VCenter) place(g *guest, cluster *simulator.ClusterComputeResource, keep bool) *host {
	if own := v.hostOf(g); keep && own != nil && v.clusterOf(own) == cluster && v.unsuited(g, own) == nil {
		return own
	}
	for _, h := range v.hostsOf(cluster) {
		if v.unsuited(g, h) == nil && !v.keptApart(g, h) {
			return h
		}
	}
	return nil
}

// placePowerOn returns the host on which a VM starts, or why it cannot start.
func (v *VCenter) placePowerOn(g *guest, wanted *types.ManagedObjectReference, level types.DrsBehavior) (*host, types.BaseMethodFault) {
	own := v.hostOf(g)
	cluster := v.clusterOf(own)
	if wanted != nil {
		// A requested host that is not suited is ignored without a fault.
		if h := v.hosts[*wanted]; h != nil && v.clusterOf(h) == cluster && v.unsuited(g, h) == nil {
			return h, nil
		}
	}
	if !placesAtStart(level) {
		return own, v.unsuited(g, own)
	}
	if h := v.place(g, cluster, v.spec.DRSKeepsHost == nil || *v.spec.DRSKeepsHost); h != nil {
		return h, nil
	}
	fault := &types.NoCompatibleHost{}
	for _, h := range v.hostsOf(cluster) {
		why := v.unsuited(g, h)
		fault.Host = append(fault.Host, h.Self)
		fault.Error = append(fault.Error, types.LocalizedMethodFault{Fault: plain(why), LocalizedMessage: message(why)})
	}
	return nil, fault
}

// PowerOnMultiVMTask implements the SOAP method. As in a vCenter, the task
// always succeeds: VMs without a suited host are listed as not attempted, VMs
// at a manual level get a recommendation, and the VMs that DRS starts get no
// task.
func (v *VCenter) PowerOnMultiVMTask(ctx *simulator.Context, req *types.PowerOnMultiVM_Task) soap.HasFault {
	v.mu.Lock()
	defer v.mu.Unlock()
	who := callerOf(ctx)
	t := v.newTask(who, "PowerOnMultiVM_Task", v.dc)
	ref := v.publish(t)
	body := &methods.PowerOnMultiVM_TaskBody{Res: &types.PowerOnMultiVM_TaskResponse{Returnval: ref}}
	if fault, delay := v.faults.taskError("PowerOnMultiVM_Task", v.dc.Self, v.dc.Name, nil); fault != nil {
		v.later(delay, func() { v.finish(t, nil, fault) })
		return body
	}
	override := types.DrsBehavior("")
	for _, o := range req.Option {
		if kv := o.GetOptionValue(); kv.Key == "OverrideAutomationLevel" {
			switch level := kv.Value.(type) {
			case types.DrsBehavior:
				override = level
			case string:
				override = types.DrsBehavior(level)
			}
		}
	}
	var result types.ClusterPowerOnVmResult
	for _, vm := range req.Vm {
		g := v.guests[vm]
		if g == nil {
			result.NotAttempted = append(result.NotAttempted, types.ClusterNotAttemptedVmInfo{Vm: vm, Fault: localized(&types.ManagedObjectNotFound{Obj: vm})})
			continue
		}
		v.powerOnOne(g, override, who, &result)
	}
	v.later(0, func() { v.finish(t, result, nil) })
	return body
}

func (v *VCenter) powerOnOne(g *guest, override types.DrsBehavior, who caller, result *types.ClusterPowerOnVmResult) {
	level := v.behavior(g)
	if level == "" {
		task := v.powerOn(g, nil, level, who)
		result.Attempted = append(result.Attempted, types.ClusterAttemptedVmInfo{Vm: g.Self, Task: &task})
		return
	}
	if override != "" {
		level = override
	}
	target, fault := v.placePowerOn(g, nil, types.DrsBehaviorFullyAutomated)
	if target != nil {
		if struck := v.faults.placementError(g, target); struck != nil {
			fault = struck
		}
	}
	switch {
	case v.on(g):
		fault = &types.InvalidPowerState{RequestedState: types.VirtualMachinePowerStatePoweredOn, ExistingState: g.Runtime.PowerState}
		fallthrough
	case fault != nil:
		result.NotAttempted = append(result.NotAttempted, types.ClusterNotAttemptedVmInfo{Vm: g.Self, Fault: localized(fault)})
	case !placesAtStart(level):
		result.Recommendations = append(result.Recommendations, types.ClusterRecommendation{
			Key: g.Self.Value, Type: "V1", Time: time.Now(), Rating: 5,
			Reason: string(types.RecommendationReasonCodePowerOnVm), ReasonText: "Power on virtual machine",
			Action: []types.BaseClusterAction{&types.ClusterInitialPlacementAction{
				ClusterAction: types.ClusterAction{Type: string(types.ActionTypePlacementV1), Target: &g.Self},
				TargetHost:    target.Self,
				Pool:          g.ResourcePool,
			}},
		})
	default:
		v.powerOn(g, &target.Self, level, who)
		result.Attempted = append(result.Attempted, types.ClusterAttemptedVmInfo{Vm: g.Self})
	}
}

func localized(f types.BaseMethodFault) types.LocalizedMethodFault {
	return types.LocalizedMethodFault{Fault: plain(f), LocalizedMessage: message(f)}
}

// evacuate moves VMs as DRS does for a host that enters maintenance mode:
// running VMs that can be moved, and powered-off VMs if that was requested. A
// VM with a passthrough device stays.
func (v *VCenter) evacuate(h *host, off bool) {
	for _, g := range v.guests {
		if v.hostOf(g) != h || v.behavior(g) != types.DrsBehaviorFullyAutomated || v.busy[g.Self] != nil {
			continue
		}
		if v.on(g) && hasVGPU(g) && v.spec.Delays.VmotionMs > 0 {
			v.later(v.spec.Delays.VmotionMs, func() { v.vmotion(g, h) })
			continue
		}
		device, _ := passthrough(g)
		if v.on(g) && device != nil || !v.on(g) && !off {
			continue
		}
		if target := v.place(g, v.clusterOf(h), true); target != nil {
			v.moveTo(g, target, nil, nil, caller{User: "DRS"})
		}
	}
}

// vmotion moves a running VM with a vGPU off a host that is entering
// maintenance mode, if another one has a vGPU left.
func (v *VCenter) vmotion(g *guest, from *host) {
	if !v.leaving(from) || !v.on(g) || v.hostOf(g) != from {
		return
	}
	target := v.place(g, v.clusterOf(from), false)
	if target == nil || target == from {
		return
	}
	drs := caller{User: "DRS"}
	v.startVM(drs, g, work{
		method: "vMotion",
		delay:  v.spec.Delays.RelocateMs,
		target: func() *types.ManagedObjectReference { return &target.Self },
		run: func() (any, types.BaseMethodFault) {
			v.moveTo(g, target, nil, nil, drs)
			return nil, nil
		},
	})
}
