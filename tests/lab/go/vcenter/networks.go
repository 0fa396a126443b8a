package main

import (
	"slices"
	"strings"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"
)

// distributed begins the name of a port group of a distributed switch.
const distributed = "dvs/"

// networks finds the networks of these names in the datacenter, or makes them. A
// standard port group is one Network for all hosts that have one of its name.
func (v *VCenter) networks(names []string) []types.ManagedObjectReference {
	folder := v.reg.Get(v.dc.NetworkFolder).(*simulator.Folder)
	var refs []types.ManagedObjectReference
	for _, name := range names {
		if e := v.reg.FindByName(name, folder.ChildEntity); e != nil {
			refs = append(refs, e.Reference())
			continue
		}
		network, entity := new(mo.Network), mo.Entity(nil)
		entity = network
		if strings.HasPrefix(name, distributed) {
			group := &simulator.DistributedVirtualPortgroup{}
			network, entity = &group.Network, group
		}
		network.Name = name
		entity.Entity().Name = name
		v.reg.PutEntity(folder, v.reg.NewEntity(entity))
		v.link(entity.Reference(), folder, folder.ChildEntity, "childEntity")
		refs = append(refs, entity.Reference())
	}
	return refs
}

// lacksNetwork returns why a VM that is off cannot be relocated to a host: it
// lacks a distributed port group of the VM. A missing standard port group is
// only a warning, because the network card of a VM that is off is not connected.
func (v *VCenter) lacksNetwork(g *guest, target *host) types.BaseMethodFault {
	for _, ref := range g.Network {
		if ref.Type != "DistributedVirtualPortgroup" || slices.Contains(target.Network, ref) {
			continue
		}
		return &types.CannotAccessNetwork{
			CannotAccessVmDevice: types.CannotAccessVmDevice{Device: "Network adapter 1", Backing: v.nameOf(ref)},
			Network:              &ref,
		}
	}
	return nil
}
