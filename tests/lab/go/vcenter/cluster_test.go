package main

import (
	"testing"

	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/vim25/types"
)

// off is the cluster of two hosts with its VM powered off.
func off() *Spec {
	spec := twoHosts()
	spec.VMs[0].PoweredOn = false
	return spec
}

func (b *bench) relocate(vm, to string) (*object.Task, error) {
	ref := b.host(to).Reference()
	return b.vm(vm).Relocate(b.ctx, types.VirtualMachineRelocateSpec{Host: &ref}, types.VirtualMachineMovePriorityDefaultPriority)
}

func TestRelocationNeedsDistributedPortGroupsOnly(t *testing.T) {
	spec := off()
	spec.Clusters[0].Hosts[0].Networks = []string{"nodes", "dvs/storage"}
	spec.Clusters[0].Hosts[1].Networks = []string{"dvs/storage"}
	spec.Clusters[0].Hosts = append(spec.Clusters[0].Hosts, HostSpec{Name: "esx3", Datastores: []string{"ds"}})
	spec.VMs[0].Networks = []string{"nodes", "dvs/storage"}
	b := start(t, spec)
	b.want(b.fails(b.relocate("gpu1", "esx3")), "CannotAccessNetwork")
	b.succeeds(b.relocate("gpu1", "esx2"))
	b.want(len(b.lab.v.guests[b.vm("gpu1").Reference()].Network), 2)
}

func TestVMHostRuleIsMandatory(t *testing.T) {
	spec := off()
	spec.Clusters[0].Rules = []RuleSpec{{Name: "licensed", VMs: []string{"gpu1"}, Hosts: []string{"esx1"}}}
	b := start(t, spec)
	b.want(b.fails(b.relocate("gpu1", "esx2")), "VmHostAffinityRuleViolation")
	b.succeeds(b.vm("gpu1").PowerOn(b.ctx))

	spec = off()
	spec.Clusters[0].Rules = []RuleSpec{{Name: "not there", VMs: []string{"gpu1"}, NotHosts: []string{"esx2"}, Optional: true}}
	b = start(t, spec)
	b.succeeds(b.relocate("gpu1", "esx2"))
}

func TestFailoverHostStartsNoVM(t *testing.T) {
	spec := off()
	spec.Clusters[0].FailoverHosts = []string{"esx2"}
	b := start(t, spec)
	b.succeeds(b.relocate("gpu1", "esx2"))
	b.want(b.fails(b.vm("gpu1").PowerOn(b.ctx)), "DisallowedOperationOnFailoverHost")
}

func TestDRSKeepsVMsOfARuleApart(t *testing.T) {
	spec := off()
	spec.Clusters[0].DRS = DRSSpec{Enabled: true, Behavior: "fullyAutomated"}
	spec.VMs = append(spec.VMs, VMSpec{Name: "other", Host: "esx1", PoweredOn: true})
	spec.Clusters[0].Rules = []RuleSpec{{Name: "spread", VMs: []string{"gpu1", "other"}}}
	keeps := false
	spec.DRSKeepsHost = &keeps
	b := start(t, spec)
	b.succeeds(b.vm("gpu1").PowerOn(b.ctx))
	b.want(b.until("gpu1 is on", func(s State) bool { return s.vm("gpu1").Boots == 1 }).vm("gpu1").Host, "esx2")
}

func TestMemoryOfPassthroughVMsIsReserved(t *testing.T) {
	spec := off()
	spec.VMs[0].MemoryMB = 3 << 10
	spec.VMs = append(spec.VMs, VMSpec{Name: "other", Host: "esx1", MemoryMB: 4 << 10, ReservedMB: 2 << 10, PoweredOn: true})
	b := start(t, spec)
	b.want(b.vmProperties("gpu1").Summary.Config.MemoryReservation, 3<<10)
	b.want(b.fails(b.vm("gpu1").PowerOn(b.ctx)), "InsufficientMemoryResourcesFault")
	b.succeeds(b.vm("other").PowerOff(b.ctx))
	b.succeeds(b.vm("gpu1").PowerOn(b.ctx))
}

func TestDatastoreIsNotAccessibleOnAHost(t *testing.T) {
	b := start(t, off())
	b.ctl("PATCH", "/datastores/ds", map[string]any{"inaccessible": []string{"esx2"}}, nil)
	b.want(b.fails(b.relocate("gpu1", "esx2")), "CannotAccessVmConfig")
	b.ctl("PATCH", "/datastores/ds", map[string]any{"inaccessible": []string{}, "maintenance": true}, nil)
	b.want(b.fails(b.vm("gpu1").PowerOn(b.ctx)), "CannotAccessVmConfig")
	b.ctl("PATCH", "/datastores/ds", map[string]any{"maintenance": false}, nil)
	b.succeeds(b.relocate("gpu1", "esx2"))
}
