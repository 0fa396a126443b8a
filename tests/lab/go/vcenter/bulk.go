package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// bulk is the generated part of a large inventory. Its hosts are like any other.
// Its VMs can be found, read and watched, but not powered or moved, and the state
// document does not show them.
type bulk struct {
	hosts  []*host
	vms    []*simulator.VirtualMachine
	byUUID map[string]ref
	// stopChanges ends the changes of setChangeRate.
	stopChanges chan struct{}
}

// bulkUUID is the BIOS UUID of the n-th VM of the bulk, so that a client can
// compute it.
func bulkUUID(n int) string { return fmt.Sprintf("c0000000-0000-4000-8000-%012x", n) }

// clusterSize is the largest number of hosts in one cluster. vSphere 6.0 allows
// 64 (VMware vCloud Architecture Toolkit, "vSphere Cluster Design"); later
// versions may allow 96, but no document was found.
const clusterSize = 96

// addBulk copies one host and one VM: creating each takes milliseconds, and files
// for each VM.
func (v *VCenter) addBulk(spec BulkSpec) error {
	if spec.Hosts < 1 || spec.VMs < 0 {
		return fmt.Errorf("bulk: want at least one host and no negative number of VMs")
	}
	if err := v.addCluster(ClusterSpec{Name: "bulk", Hosts: []HostSpec{{Name: "bulk-0000", Datastores: []string{"bulk"}}}}); err != nil {
		return err
	}
	first := v.findCluster("bulk")
	model, err := v.findHost("bulk-0000")
	if err != nil {
		return err
	}
	c := &v.bulk
	c.byUUID = map[string]ref{}
	c.hosts = append(c.hosts, model)
	cluster, refs := first, slices.Clone(first.Host)
	fill := func() {
		v.set(cluster, "host", refs)
		cluster.Summary.GetComputeResourceSummary().NumHosts = int32(len(refs))
	}
	for n := 1; n < spec.Hosts; n++ {
		if n%clusterSize == 0 {
			fill()
			name := fmt.Sprintf("bulk-cluster-%02d", n/clusterSize)
			if err := v.addCluster(ClusterSpec{Name: name}); err != nil {
				return err
			}
			cluster, refs = v.findCluster(name), nil
		}
		h := copyHost(model, fmt.Sprintf("bulk-%04d", n))
		v.reg.NewEntity(h.HostSystem)
		h.Summary.Host, h.Config.Host = &h.Self, h.Self
		v.reg.PutEntity(cluster, h.HostSystem)
		v.hosts[h.Self] = h
		c.hosts = append(c.hosts, h)
		refs = append(refs, h.Self)
	}
	fill()
	return v.addBulkVMs(spec, first)
}

func copyHost(model *host, name string) *host {
	h := &host{HostSystem: &simulator.HostSystem{HostSystem: model.HostSystem.HostSystem}}
	hardware, summary, config := *model.Hardware, *model.Summary.Hardware, *model.Config
	h.Hardware, h.Summary.Hardware, h.Config = &hardware, &summary, &config
	h.Summary.Runtime = &h.Runtime
	h.Name, h.Summary.Config.Name = name, name
	h.RecentTask, h.Vm = nil, nil
	h.Runtime.InQuarantineMode = types.NewBool(false)
	return h
}

func (v *VCenter) addBulkVMs(spec BulkSpec, cluster *simulator.ClusterComputeResource) error {
	if spec.VMs == 0 {
		return nil
	}
	g, err := v.addVM(VMSpec{Name: "bulk-vm-00000", UUID: bulkUUID(0), Host: "bulk-0000"}, caller{User: "spec"})
	if err != nil {
		return err
	}
	delete(v.guests, g.Self)
	model, c := g.VirtualMachine, &v.bulk
	model.Runtime.PowerState = types.VirtualMachinePowerStatePoweredOn
	model.Summary.Runtime.PowerState = types.VirtualMachinePowerStatePoweredOn
	folder := v.reg.Get(v.dc.VmFolder).(*simulator.Folder)
	pool := v.reg.Get(*cluster.ResourcePool).(*simulator.ResourcePool)
	for n := range spec.VMs {
		vm := model
		h := c.hosts[n%len(c.hosts)]
		if n > 0 {
			name, uuid := fmt.Sprintf("bulk-vm-%05d", n), bulkUUID(n)
			vm = &simulator.VirtualMachine{VirtualMachine: model.VirtualMachine}
			config := *model.Config
			vm.Config = &config
			vm.Name, vm.Config.Name, vm.Summary.Config.Name = name, name, name
			vm.Config.Uuid, vm.Summary.Config.Uuid = uuid, uuid
			vm.RecentTask = nil
			vm.Runtime.Host, vm.Summary.Runtime.Host = &h.Self, &h.Self
			v.reg.NewEntity(vm)
			vm.Summary.Vm = &vm.Self
			v.reg.PutEntity(folder, vm)
			h.Vm = append(h.Vm, vm.Self)
			pool.Vm = append(pool.Vm, vm.Self)
			folder.ChildEntity = append(folder.ChildEntity, vm.Self)
		}
		c.vms = append(c.vms, vm)
		c.byUUID[vm.Config.Uuid] = vm.Self
	}
	return nil
}

// FindAllByUuid implements the SOAP method for a bulk inventory: the
// simulator's search reads every VM, a vCenter uses an index.
func (v *VCenter) FindAllByUuid(ctx *simulator.Context, req *types.FindAllByUuid) soap.HasFault {
	if found, ok := v.bulk.byUUID[req.Uuid]; ok && req.VmSearch {
		return &methods.FindAllByUuidBody{Res: &types.FindAllByUuidResponse{Returnval: []ref{found}}}
	}
	body := &methods.FindAllByUuidBody{Res: &types.FindAllByUuidResponse{}}
	v.mu.Lock()
	defer v.mu.Unlock()
	for self, g := range v.guests {
		if req.VmSearch && g.Config.Uuid == req.Uuid {
			body.Res.Returnval = append(body.Res.Returnval, self)
		}
	}
	return body
}

// changing is the tenth of the hosts that setChangeRate changes. Benches put other
// hosts into maintenance.
func (c *bulk) changing() []*host { return c.hosts[len(c.hosts)-len(c.hosts)/10:] }

// setChangeRate changes this many properties of the bulk per second, until the
// next call: the load of VMs, and every tenth time a host's quarantine mode,
// which clients that follow hosts receive.
func (v *VCenter) setChangeRate(perSecond int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.bulk.stopChanges != nil {
		close(v.bulk.stopChanges)
		v.bulk.stopChanges = nil
	}
	if perSecond == 0 {
		return
	}
	end := make(chan struct{})
	v.bulk.stopChanges = end
	go func() {
		const beat = 10 * time.Millisecond
		tick := time.NewTicker(beat)
		defer tick.Stop()
		began, done := time.Now(), 0
		for {
			select {
			case <-end:
				return
			case <-tick.C:
			}
			for due := int(time.Since(began).Seconds() * float64(perSecond)); done < due; done++ {
				v.changeOne(done)
			}
		}
	}()
}

func (v *VCenter) changeOne(n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return
	}
	hosts := v.bulk.changing()
	if n%10 == 0 && len(hosts) > 0 {
		h := hosts[rand.IntN(len(hosts))]
		v.set(h.HostSystem, "runtime.inQuarantineMode", !*h.Runtime.InQuarantineMode)
		return
	}
	if len(v.bulk.vms) > 0 {
		vm := v.bulk.vms[rand.IntN(len(v.bulk.vms))]
		v.set(vm, "summary.quickStats.overallCpuUsage", rand.Int32N(4000))
	}
}
