package main

import (
	"fmt"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/types"
)

// ImageSpec is an ISO image in the CD drive of a VM.
type ImageSpec struct {
	// Datastore is the one that the image is on; the host of the VM mounts it.
	Datastore string `json:"datastore"`
	// Connected makes the drive count as connected in the check of a relocation.
	// By the API reference a drive is connected only while its VM runs.
	Connected bool `json:"connected"`
}

// cdDrive makes the drive of a VM with an image on a datastore.
func cdDrive(image ImageSpec, ds *simulator.Datastore) types.BaseVirtualDevice {
	drive := &types.VirtualCdrom{}
	drive.Key, drive.ControllerKey = 3100, 200
	drive.DeviceInfo = &types.Description{Label: "CD/DVD drive 1", Summary: "ISO " + imagePath(image)}
	backing := &types.VirtualCdromIsoBackingInfo{}
	backing.FileName, backing.Datastore = imagePath(image), &ds.Self
	drive.Backing = backing
	drive.Connectable = &types.VirtualDeviceConnectInfo{
		StartConnected: image.Connected, Connected: image.Connected, AllowGuestControl: true,
	}
	return drive
}

func imagePath(image ImageSpec) string {
	return fmt.Sprintf("[%s] images/seed.iso", image.Datastore)
}

// filesOf are the datastores of a VM without those that only an image in its
// drive is on.
func (v *VCenter) filesOf(g *guest) []types.ManagedObjectReference {
	if g.image == nil {
		return g.Datastore
	}
	var files []types.ManagedObjectReference
	for _, ref := range g.Datastore {
		if ref != *g.image {
			files = append(files, ref)
		}
	}
	return files
}

// lacksImage returns the fault for an image in a drive that a host cannot
// access; nil if there is none.
func (v *VCenter) lacksImage(g *guest, target *host) *types.CannotAccessVmDevice {
	if g.spec.Image == nil || g.image == nil || v.accesses(target, *g.image) {
		return nil
	}
	return &types.CannotAccessVmDevice{
		Device: "CD/DVD drive 1", Backing: imagePath(*g.spec.Image), Connected: g.spec.Image.Connected,
	}
}
