package main

import (
	"slices"

	"github.com/vmware/govmomi/vim25/types"
)

// automatic is the physical function of an SR-IOV card that is chosen at
// power-on.
const automatic = "Automatic-0000:00:00.0"

// sriovCard makes the SR-IOV network card of a VM.
func sriovCard(address string) types.BaseVirtualDevice {
	if address == "automatic" {
		address = automatic
	}
	card := &types.VirtualSriovEthernetCard{SriovBacking: &types.VirtualSriovEthernetCardSriovBackingInfo{
		PhysicalFunctionBacking: &types.VirtualPCIPassthroughDeviceBackingInfo{Id: address, DeviceId: "0", SystemId: "BYPASS"},
	}}
	card.Key, card.ControllerKey = 4100, 100
	card.DeviceInfo = &types.Description{Label: "SR-IOV network adapter 1"}
	return card
}

// lacksFunction returns why a VM cannot be powered on on a host: the host has
// no virtual functions for its SR-IOV card. How many VMs share a physical
// function is not counted.
func lacksFunction(g *guest, h *host) types.BaseMethodFault {
	wanted := g.spec.SriovCard
	if wanted == "" {
		return nil
	}
	has := func(d DeviceSpec) bool {
		return d.VirtualFunctions > 0 && (wanted == "automatic" || wanted == d.ID)
	}
	if slices.ContainsFunc(h.devices, has) {
		return nil
	}
	return &types.GenericVmConfigFault{Reason: "Failed to find a virtual function for SR-IOV network adapter 1."}
}
