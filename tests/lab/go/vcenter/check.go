package main

import (
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// CheckRelocateTask implements the SOAP method: it finds what a relocation
// would be refused for, and what rules say.
func (v *VCenter) CheckRelocateTask(ctx *simulator.Context, req *types.CheckRelocate_Task) soap.HasFault {
	v.mu.Lock()
	defer v.mu.Unlock()
	g := v.guests[req.Vm]
	if g == nil {
		return &methods.CheckRelocate_TaskBody{Fault_: soapFault(&types.ManagedObjectNotFound{Obj: req.Vm})}
	}
	t := v.newTask(callerOf(ctx), "CheckRelocate_Task", g.VirtualMachine)
	ref := v.publish(t)
	v.finish(t, types.ArrayOfCheckResult{CheckResult: []types.CheckResult{v.checkRelocate(g, req.Spec)}}, nil)
	return &methods.CheckRelocate_TaskBody{Res: &types.CheckRelocate_TaskResponse{Returnval: ref}}
}

func (v *VCenter) checkRelocate(g *guest, spec types.VirtualMachineRelocateSpec) types.CheckResult {
	result := types.CheckResult{Vm: &g.Self, Host: spec.Host}
	var target *host
	if spec.Host != nil {
		target = v.hosts[*spec.Host]
	}
	found := func(of moment) []types.LocalizedMethodFault {
		fault, _ := v.faults.taskFault(attempt{
			method: "CheckRelocate_Task", names: []string{g.Self.Value, g.Name}, hosts: hostNames(target), of: of,
		}, g.Name)
		if fault == nil {
			return nil
		}
		return []types.LocalizedMethodFault{{Fault: fault, LocalizedMessage: message(fault)}}
	}
	result.Error, result.Warning = found(ofCheckError), found(ofCheckWarning)
	if _, fault := v.relocateTarget(g, spec); !isNil(fault) {
		result.Error = append(result.Error, types.LocalizedMethodFault{Fault: plain(fault), LocalizedMessage: message(fault)})
	}
	if target == nil {
		return result
	}
	if fault := v.lacksImage(g, target); fault != nil && !fault.Connected {
		result.Warning = append(result.Warning, types.LocalizedMethodFault{Fault: plain(fault), LocalizedMessage: message(fault)})
	}
	return result
}
