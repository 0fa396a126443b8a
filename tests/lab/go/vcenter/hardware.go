package main

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// The oldest hardware version that a host runs, and the newest of a host and
// that of a VM for which the inventory names none.
const (
	oldestHardware  = 7
	defaultHardware = 13
)

func hardwareKey(version int) string { return fmt.Sprintf("vmx-%d", version) }

// newestHardware is the newest hardware version that a host runs.
func (h *host) newestHardware() int { return cmp.Or(h.hardware, defaultHardware) }

// tooNew returns why a host cannot run the hardware version of a VM.
func (v *VCenter) tooNew(g *guest, h *host) types.BaseMethodFault {
	if cmp.Or(g.spec.HardwareVersion, defaultHardware) <= h.newestHardware() {
		return nil
	}
	return &types.VirtualHardwareVersionNotSupported{HostName: h.Name, Host: h.Self}
}

// QueryConfigOptionDescriptor implements the SOAP method: the hardware versions
// of a cluster, each with the hosts that run it.
func (v *VCenter) QueryConfigOptionDescriptor(_ *simulator.Context, req *types.QueryConfigOptionDescriptor) soap.HasFault {
	v.mu.Lock()
	defer v.mu.Unlock()
	var hosts []*host
	newest := 0
	for _, h := range v.hosts {
		cluster := v.clusterOf(h)
		if cluster != nil && cluster.EnvironmentBrowser != nil && *cluster.EnvironmentBrowser == req.This {
			hosts = append(hosts, h)
			newest = max(newest, h.newestHardware())
		}
	}
	slices.SortFunc(hosts, func(a, b *host) int { return cmp.Compare(a.Self.Value, b.Self.Value) })
	var all []types.VirtualMachineConfigOptionDescriptor
	for version := oldestHardware; version <= newest; version++ {
		descriptor := types.VirtualMachineConfigOptionDescriptor{
			Key:                 hardwareKey(version),
			Description:         hardwareKey(version),
			CreateSupported:     true,
			DefaultConfigOption: version == newest,
			RunSupported:        true,
			UpgradeSupported:    true,
		}
		for _, h := range hosts {
			if version <= h.newestHardware() {
				descriptor.Host = append(descriptor.Host, h.Self)
			}
		}
		all = append(all, descriptor)
	}
	return &methods.QueryConfigOptionDescriptorBody{Res: &types.QueryConfigOptionDescriptorResponse{Returnval: all}}
}
