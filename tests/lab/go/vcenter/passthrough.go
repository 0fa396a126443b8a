package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/simulator/esx"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// deviceKey is the key of the first passthrough device in a vCenter.
const deviceKey = 13000

// noDevice is an InsufficientResourcesFault with a text that names the missing
// device.
type noDevice struct {
	types.InsufficientResourcesFault
	text string
}

// plain is the fault as it is sent.
func plain(f types.BaseMethodFault) types.BaseMethodFault {
	if x, ok := f.(*noDevice); ok {
		return &x.InsufficientResourcesFault
	}
	return f
}

// setDevices writes a host's PCI devices. The template's list is shared between
// all hosts, so it is copied before anything is appended.
func (v *VCenter) setDevices(h *host, devices []DeviceSpec, initial bool) {
	h.devices = slices.Clone(devices)
	pci := slices.Clone(esx.HostHardwareInfo.PciDevice)
	var info []types.BaseHostPciPassthruInfo
	for _, d := range devices {
		pci = append(pci, pciDevice(d))
		of := types.HostPciPassthruInfo{
			Id:              d.ID,
			DependentDevice: d.ID,
			PassthruCapable: true,
			PassthruEnabled: d.Passthrough,
			PassthruActive:  d.Passthrough,
			HardwareLabel:   d.Label,
		}
		if d.VirtualFunctions == 0 {
			info = append(info, &of)
			continue
		}
		info = append(info, &types.HostSriovInfo{
			HostPciPassthruInfo:         of,
			SriovCapable:                true,
			SriovEnabled:                true,
			SriovActive:                 true,
			NumVirtualFunctionRequested: d.VirtualFunctions,
			NumVirtualFunction:          d.VirtualFunctions,
			MaxVirtualFunctionSupported: d.VirtualFunctions,
		})
	}
	if initial {
		h.Hardware.PciDevice, h.Config.PciPassthruInfo = pci, info
		return
	}
	v.set(h.HostSystem, "hardware.pciDevice", pci, "config.pciPassthruInfo", info)
}

func pciDevice(d DeviceSpec) types.HostPciDevice {
	bus, slot, function := parseAddress(d.ID)
	vendor, name := "Vendor", "Device"
	if d.Vendor == 0x10de {
		vendor, name = "NVIDIA Corporation", "NVIDIA GPU"
	}
	return types.HostPciDevice{
		Id: d.ID, Bus: bus, Slot: slot, Function: function,
		ClassId: shortID(d.Class), VendorId: shortID(d.Vendor), DeviceId: shortID(d.Device),
		SubVendorId: shortID(d.SubVendor), SubDeviceId: shortID(d.SubDevice),
		VendorName: vendor, DeviceName: fmt.Sprintf("%s [%04x]", name, uint16(d.Device)),
	}
}

func systemID(h *host) string { return h.Hardware.SystemInfo.Uuid }

// virtualDevice makes the passthrough device of a VM from its spec.
func (v *VCenter) virtualDevice(h *host, gpu GPUSpec) (types.BaseVirtualDevice, error) {
	device := &types.VirtualPCIPassthrough{VirtualDevice: types.VirtualDevice{
		Key:           deviceKey,
		ControllerKey: 100,
		UnitNumber:    types.NewInt32(18),
		DeviceInfo:    &types.Description{Label: "PCI device 0", Summary: ""},
	}}
	switch gpu.Kind {
	case "", "none":
		return nil, nil
	case "dynamic":
		device.Backing = &types.VirtualPCIPassthroughDynamicBackingInfo{
			AllowedDevice: []types.VirtualPCIPassthroughAllowedDevice{{
				VendorId: int32(gpu.Vendor), DeviceId: int32(gpu.Device),
				SubVendorId: int32(gpu.SubVendor), SubDeviceId: int32(gpu.SubDevice),
			}},
			CustomLabel: gpu.Label,
		}
	case "static":
		for _, d := range h.devices {
			if d.ID == gpu.ID && gpu.Vendor == 0 {
				gpu.Vendor, gpu.Device = d.Vendor, d.Device
			}
		}
		device.Backing = &types.VirtualPCIPassthroughDeviceBackingInfo{
			Id: gpu.ID, DeviceId: strconv.FormatUint(uint64(gpu.Device), 16), SystemId: systemID(h), VendorId: shortID(gpu.Vendor),
		}
	case "vgpu":
		device.Backing = &types.VirtualPCIPassthroughVmiopBackingInfo{Vgpu: gpu.Profile, MigrateSupported: types.NewBool(true)}
	default:
		return nil, fmt.Errorf("gpu.kind %q: want dynamic, static, vgpu or none", gpu.Kind)
	}
	return device, nil
}

// passthrough finds the passthrough device of a VM and its index in the list.
func passthrough(g *guest) (*types.VirtualPCIPassthrough, int) {
	for i, d := range g.Config.Hardware.Device {
		if p, ok := d.(*types.VirtualPCIPassthrough); ok {
			return p, i
		}
	}
	return nil, -1
}

// claim finds the device that a VM would get on a host, or returns why there is
// none. A VM without a passthrough device needs none.
func (v *VCenter) claim(g *guest, h *host) (string, types.BaseMethodFault) {
	if f := lacksFunction(g, h); f != nil {
		return "", f
	}
	p, _ := passthrough(g)
	if p == nil {
		return "", nil
	}
	switch b := p.Backing.(type) {
	case *types.VirtualPCIPassthroughDynamicBackingInfo:
		for _, d := range h.devices {
			if d.Passthrough && allows(b, d) && v.holder(h, d.ID, g) == nil {
				return d.ID, nil
			}
		}
		return "", &noDevice{text: fmt.Sprintf(
			"Insufficient resources. One or more devices (pciPassthru0) required by VM %s are not available on host %s.", g.Name, h.Name)}
	case *types.VirtualPCIPassthroughDeviceBackingInfo:
		return v.claimAddress(g, h, b)
	case *types.VirtualPCIPassthroughVmiopBackingInfo:
		return "", v.claimVGPU(g, h)
	}
	return "", &types.GenericVmConfigFault{Reason: "Module 'DevicePowerOn' power on failed."}
}

func (v *VCenter) claimAddress(g *guest, h *host, b *types.VirtualPCIPassthroughDeviceBackingInfo) (string, types.BaseMethodFault) {
	bus, slot, function := parseAddress(b.Id)
	at := fmt.Sprintf("%d:%d.%d", bus, slot, function)
	mismatch := &types.GenericVmConfigFault{Reason: fmt.Sprintf(
		"The systemId does not match the current system or the deviceId, and the vendorId does not match the device currently at %s.", at)}
	if b.SystemId != systemID(h) {
		return "", mismatch
	}
	for _, d := range h.devices {
		if d.ID != b.Id {
			continue
		}
		if b.VendorId != shortID(d.Vendor) || !deviceIDMatches(b.DeviceId, d.Device) {
			return "", mismatch
		}
		if !d.Passthrough {
			break
		}
		if other := v.holder(h, d.ID, g); other != nil {
			return "", &types.GenericVmConfigFault{Reason: fmt.Sprintf("Device %s is already in use by VM %s.", at, other.Name)}
		}
		return d.ID, nil
	}
	return "", &types.GenericVmConfigFault{Reason: fmt.Sprintf("Device %s is not a passthrough device.", at)}
}

// allows is true if a VM may get a device. An id or label that the VM does not
// specify is not compared.
func allows(b *types.VirtualPCIPassthroughDynamicBackingInfo, d DeviceSpec) bool {
	if b.CustomLabel != "" && b.CustomLabel != d.Label {
		return false
	}
	is := func(wanted int32, id PCIID) bool { return wanted == 0 || PCIID(wanted) == id }
	return slices.ContainsFunc(b.AllowedDevice, func(a types.VirtualPCIPassthroughAllowedDevice) bool {
		return PCIID(a.VendorId) == d.Vendor && PCIID(a.DeviceId) == d.Device &&
			is(a.SubVendorId, d.SubVendor) && is(a.SubDeviceId, d.SubDevice)
	})
}

// deviceIDMatches accepts the formats in use: hexadecimal with and without 0x,
// the signed decimal that the API documents, and an empty string.
func deviceIDMatches(s string, id PCIID) bool {
	if s == "" || s == strconv.Itoa(int(shortID(id))) {
		return true
	}
	n, err := strconv.ParseUint(strings.TrimPrefix(strings.ToLower(s), "0x"), 16, 32)
	return err == nil && PCIID(n) == id
}

// holder is the other VM that has a device, or is about to get it.
func (v *VCenter) holder(h *host, id string, but *guest) *guest {
	for ref, g := range v.guests {
		if g == but {
			continue
		}
		if g.device == id && v.hostOf(g) == h {
			return g
		}
		if b := v.busy[ref]; b != nil && b.device == id && b.target != nil && *b.target == h.Self {
			return g
		}
	}
	return nil
}

// bind sets the device of a running VM on the VM and on the host.
func (v *VCenter) bind(g *guest, h *host) {
	p, i := passthrough(g)
	if p == nil || g.device == "" {
		return
	}
	dynamic, ok := p.Backing.(*types.VirtualPCIPassthroughDynamicBackingInfo)
	if ok {
		v.setAssigned(g, p, i, dynamic, g.device)
	}
	if ok || v.spec.BindStatic {
		binding := append(slices.Clone(h.Config.AssignableHardwareBinding),
			types.HostAssignableHardwareBinding{InstanceId: g.device, Vm: g.Self})
		v.set(h.HostSystem, "config.assignableHardwareBinding", binding)
	}
}

// release frees the device of a VM.
func (v *VCenter) release(g *guest, h *host) {
	if g.device == "" {
		return
	}
	g.device = ""
	if p, i := passthrough(g); p != nil {
		if dynamic, ok := p.Backing.(*types.VirtualPCIPassthroughDynamicBackingInfo); ok {
			v.setAssigned(g, p, i, dynamic, "")
		}
	}
	binding := slices.DeleteFunc(slices.Clone(h.Config.AssignableHardwareBinding),
		func(b types.HostAssignableHardwareBinding) bool { return b.Vm == g.Self })
	v.set(h.HostSystem, "config.assignableHardwareBinding", binding)
}

// setAssigned writes assignedId, which a dynamic backing has only while its VM
// runs. The device is copied, because readers may use the old one.
func (v *VCenter) setAssigned(g *guest, p *types.VirtualPCIPassthrough, i int, b *types.VirtualPCIPassthroughDynamicBackingInfo, id string) {
	backing, device := *b, *p
	backing.AssignedId = id
	device.Backing = &backing
	devices := slices.Clone(g.Config.Hardware.Device)
	devices[i] = &device
	v.set(g.VirtualMachine, "config.hardware.device", devices)
}

// describeDevice is the text of the journal for a VM's passthrough device.
func describeDevice(g *guest) string {
	p, _ := passthrough(g)
	if p == nil {
		return "no passthrough device"
	}
	switch b := p.Backing.(type) {
	case *types.VirtualPCIPassthroughDeviceBackingInfo:
		return "static " + b.Id
	case *types.VirtualPCIPassthroughDynamicBackingInfo:
		var ids []string
		for _, a := range b.AllowedDevice {
			ids = append(ids, fmt.Sprintf("%04x:%04x", uint16(a.VendorId), uint16(a.DeviceId)))
		}
		return "dynamic " + strings.Join(ids, ",")
	}
	return fmt.Sprintf("%T", p.Backing)
}

// QueryConfigTarget implements the SOAP method, with the host's own passthrough
// devices: the address and systemId of a static backing come from here.
func (v *VCenter) QueryConfigTarget(ctx *simulator.Context, req *types.QueryConfigTarget) soap.HasFault {
	v.mu.Lock()
	defer v.mu.Unlock()
	browser := v.reg.Get(req.This).(*simulator.EnvironmentBrowser)
	if req.Host != nil && v.hosts[*req.Host] == nil {
		return &methods.QueryConfigTargetBody{Fault_: soapFault(&types.ManagedObjectNotFound{Obj: *req.Host})}
	}
	res := browser.QueryConfigTarget(ctx, req)
	body, ok := res.(*methods.QueryConfigTargetBody)
	if !ok || body.Res == nil {
		return res
	}
	target := *body.Res.Returnval
	type kind struct {
		vendor, device PCIID
		label          string
	}
	kinds := map[kind]bool{}
	for _, h := range v.hosts {
		if req.Host != nil && h.Self != *req.Host {
			continue
		}
		if cluster := v.clusterOf(h); req.Host == nil && (cluster.EnvironmentBrowser == nil || *cluster.EnvironmentBrowser != req.This) {
			continue
		}
		for _, d := range h.devices {
			if !d.Passthrough {
				continue
			}
			device := pciDevice(d)
			target.PciPassthrough = append(target.PciPassthrough, &types.VirtualMachinePciPassthroughInfo{
				VirtualMachineTargetInfo: types.VirtualMachineTargetInfo{Name: d.ID},
				PciDevice:                device,
				SystemId:                 systemID(h),
			})
			if k := (kind{d.Vendor, d.Device, d.Label}); !kinds[k] {
				kinds[k] = true
				target.DynamicPassthrough = append(target.DynamicPassthrough, types.VirtualMachineDynamicPassthroughInfo{
					VirtualMachineTargetInfo: types.VirtualMachineTargetInfo{Name: device.DeviceName},
					VendorName:               device.VendorName,
					DeviceName:               device.DeviceName,
					VendorId:                 int32(d.Vendor),
					DeviceId:                 int32(d.Device),
					CustomLabel:              d.Label,
				})
			}
		}
	}
	return &methods.QueryConfigTargetBody{Res: &types.QueryConfigTargetResponse{Returnval: &target}}
}
