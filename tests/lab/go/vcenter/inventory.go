package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/simulator/esx"
	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// namespace makes the UUID of a host a function of its name, so that two runs
// of one spec have the same UUIDs.
var namespace = uuid.MustParse("7a1f0f3e-6f0b-4d6e-9b0a-2c9d5e1b7a44")

// build makes the inventory of the spec. It does not use AddHost and CreateVM:
// the first is quadratic in the number of hosts, the second writes files.
func (v *VCenter) build() error {
	model := simulator.VPX()
	model.Datacenter, model.Portgroup, model.Cluster, model.Host, model.Machine, model.Datastore = 1, 0, 0, 0, 0, 0
	model.ServiceContent.About.ApiVersion = "8.0.3.0"
	model.ServiceContent.About.Version = "8.0.3"
	if err := model.Create(); err != nil {
		return fmt.Errorf("simulator: %w", err)
	}
	v.model, v.reg, v.ctx = model, model.Map(), model.Service.Context
	v.dc = v.reg.Any("Datacenter").(*simulator.Datacenter)
	v.dc.Name = "DC0"
	if v.spec.Datacenter != "" {
		v.dc.Name = v.spec.Datacenter
	}
	if ms := v.spec.SessionTimeoutMs; ms > 0 {
		options := v.reg.OptionManager()
		options.Setting = append(options.Setting, &types.OptionValue{
			Key: "config.vmacore.soap.sessionTimeout", Value: (time.Duration(ms) * time.Millisecond).String(),
		})
	}
	for _, c := range v.spec.Clusters {
		if err := v.addCluster(c); err != nil {
			return fmt.Errorf("cluster %q: %w", c.Name, err)
		}
	}
	if v.spec.Bulk != nil {
		if err := v.addBulk(*v.spec.Bulk); err != nil {
			return err
		}
	}
	for _, spec := range v.spec.VMs {
		if _, err := v.addVM(spec, caller{User: "spec"}); err != nil {
			return err
		}
	}
	// The overrides and rules name VMs, so the VMs must exist first.
	for _, c := range v.spec.Clusters {
		if err := v.setOverrides(c); err != nil {
			return fmt.Errorf("cluster %q: %w", c.Name, err)
		}
		if err := v.setRules(c); err != nil {
			return fmt.Errorf("cluster %q: %w", c.Name, err)
		}
	}
	return nil
}

func (v *VCenter) addCluster(spec ClusterSpec) error {
	folder := v.reg.Get(v.dc.HostFolder).(*simulator.Folder)
	cluster, fault := simulator.CreateClusterComputeResource(v.ctx, folder, spec.Name, types.ClusterConfigSpecEx{})
	if fault != nil {
		return fmt.Errorf("%T", fault)
	}
	behavior := types.DrsBehavior(spec.DRS.Behavior)
	if behavior == "" {
		behavior = types.DrsBehaviorManual
	}
	switch behavior {
	case types.DrsBehaviorManual, types.DrsBehaviorPartiallyAutomated, types.DrsBehaviorFullyAutomated:
	default:
		return fmt.Errorf("drs.behavior %q: want manual, partiallyAutomated or fullyAutomated", behavior)
	}
	overrides := spec.DRS.OverridesEnabled == nil || *spec.DRS.OverridesEnabled
	config := cluster.ConfigurationEx.(*types.ClusterConfigInfoEx)
	config.DrsConfig.Enabled = types.NewBool(spec.DRS.Enabled)
	config.DrsConfig.DefaultVmBehavior = behavior
	config.DrsConfig.EnableVmBehaviorOverrides = &overrides
	config.DrsConfig.VmotionRate = 3
	for _, h := range spec.Hosts {
		if _, err := v.addHost(cluster, h); err != nil {
			return err
		}
	}
	return nil
}

func (v *VCenter) setOverrides(spec ClusterSpec) error {
	cluster := v.findCluster(spec.Name)
	config := cluster.ConfigurationEx.(*types.ClusterConfigInfoEx)
	for _, o := range spec.DRS.VMOverrides {
		g, err := v.findVM(o.VM)
		if err != nil {
			return fmt.Errorf("drs.vmOverrides: %w", err)
		}
		config.DrsVmConfig = append(config.DrsVmConfig, types.ClusterDrsVmConfigInfo{
			Key: g.Self, Enabled: o.Enabled, Behavior: types.DrsBehavior(o.Behavior),
		})
	}
	return nil
}

func (v *VCenter) findCluster(name string) *simulator.ClusterComputeResource {
	for _, e := range v.reg.All("ClusterComputeResource") {
		if c := e.(*simulator.ClusterComputeResource); c.Name == name || c.Self.Value == name {
			return c
		}
	}
	return nil
}

func (v *VCenter) clusterOf(h *host) *simulator.ClusterComputeResource {
	return v.reg.Get(*h.Parent).(*simulator.ClusterComputeResource)
}

func (v *VCenter) addHost(cluster *simulator.ClusterComputeResource, spec HostSpec) (*host, error) {
	if spec.Name == "" {
		return nil, fmt.Errorf("a host of cluster %q has no name", cluster.Name)
	}
	if _, err := v.findHost(spec.Name); err == nil {
		return nil, fmt.Errorf("host %q: there is one of that name", spec.Name)
	}
	template := esx.HostSystem
	template.Network = cluster.Network[:1]
	if len(spec.Networks) > 0 {
		template.Network = v.networks(spec.Networks)
	}
	h := &host{HostSystem: simulator.NewHostSystem(v.ctx, template)}
	id := uuid.NewSHA1(namespace, []byte(spec.Name)).String()
	h.Name, h.Summary.Config.Name = spec.Name, spec.Name
	h.Summary.Hardware.Uuid, h.Hardware.SystemInfo.Uuid = id, id
	h.Runtime.ConnectionState = types.HostSystemConnectionStateConnected
	h.Runtime.PowerState = types.HostSystemPowerStatePoweredOn
	v.setVGPUs(h, spec)
	h.hardware = spec.HardwareVersion
	if h.Summary.Config.Product = nil; spec.Build != "" {
		h.Summary.Config.Product = &types.AboutInfo{Build: spec.Build}
	}
	if spec.MemoryMB > 0 {
		h.Summary.Hardware.MemorySize, h.Hardware.MemorySize = spec.MemoryMB<<20, spec.MemoryMB<<20
	}
	h.Capability.AssignableHardwareSupported = types.NewBool(true)
	h.Vm = nil
	v.setDevices(h, spec.Devices, true)

	h.Self = types.ManagedObjectReference{}
	v.reg.NewEntity(h.HostSystem)
	h.Summary.Host, h.Config.Host = &h.Self, h.Self
	// The cluster must list the host before it is put: container views check
	// with the parent whether a new object belongs to them.
	v.set(cluster, "host", append(slices.Clone(cluster.Host), h.Self))
	v.reg.PutEntity(cluster, h.HostSystem)

	summary := cluster.Summary.GetComputeResourceSummary()
	summary.TotalCpu += int32(h.Summary.Hardware.CpuMhz) * int32(h.Summary.Hardware.NumCpuCores)
	summary.TotalMemory += h.Summary.Hardware.MemorySize
	summary.NumHosts++
	summary.NumEffectiveHosts++
	v.hosts[h.Self] = h
	for _, name := range spec.Datastores {
		if err := v.mount(h, name); err != nil {
			return nil, fmt.Errorf("host %q: %w", spec.Name, err)
		}
	}
	return h, nil
}

// datastoreDir holds a directory for each datastore.
func (v *VCenter) datastoreDir() string {
	if v.reg == nil {
		return ""
	}
	for _, o := range v.reg.OptionManager().Setting {
		if kv := o.GetOptionValue(); kv.Key == "vcsim.home" {
			return kv.Value.(string)
		}
	}
	return ""
}

func (v *VCenter) mount(h *host, name string) error {
	dir := filepath.Join(v.datastoreDir(), name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("datastore %q: %w", name, err)
	}
	system := v.reg.Get(*h.ConfigManager.DatastoreSystem).(*simulator.HostDatastoreSystem)
	res := system.CreateLocalDatastore(v.fresh(), &types.CreateLocalDatastore{Name: name, Path: dir})
	if f := res.Fault(); f != nil {
		return fmt.Errorf("datastore %q: %s", name, f.String)
	}
	// The simulator does not report a mount, and the host may have been reported without it.
	v.set(h.HostSystem, "datastore", slices.Clone(h.Datastore))
	return nil
}

func (v *VCenter) datastore(h *host, name string) *simulator.Datastore {
	for _, ref := range h.Datastore {
		if ds, ok := v.reg.Get(ref).(*simulator.Datastore); ok && ds.Name == name {
			return ds
		}
	}
	return nil
}

// addVM registers a VM on its host and starts it if the spec requests it.
func (v *VCenter) addVM(spec VMSpec, who caller) (*guest, error) {
	fail := func(err error) (*guest, error) { return nil, fmt.Errorf("VM %q: %w", spec.Name, err) }
	h, err := v.findHost(spec.Host)
	if err != nil {
		return fail(err)
	}
	if spec.Datastore == "" && len(h.Datastore) > 0 {
		spec.Datastore = v.reg.Get(h.Datastore[0]).(*simulator.Datastore).Name
	}
	ds := v.datastore(h, spec.Datastore)
	if ds == nil {
		return fail(fmt.Errorf("host %q has no datastore %q", h.Name, spec.Datastore))
	}
	folder, err := v.vmFolder(spec)
	if err != nil {
		return fail(err)
	}
	vm, fault := simulator.NewVirtualMachine(v.fresh(), folder, &types.VirtualMachineConfigSpec{
		Name:  fileName(spec.Name),
		Files: &types.VirtualMachineFileInfo{VmPathName: "[" + spec.Datastore + "]"},
	})
	if fault != nil {
		return fail(fmt.Errorf("%T", fault))
	}
	if spec.UUID == "" {
		spec.UUID = uuid.NewSHA1(namespace, []byte("vm/"+folder.Value+"/"+spec.Name)).String()
	}
	g := &guest{VirtualMachine: vm, spec: spec}
	device, err := v.virtualDevice(h, spec.GPU)
	if err != nil {
		return fail(err)
	}
	devices := slices.Clone(vm.Config.Hardware.Device)
	if device != nil {
		devices = append(devices, device)
	}
	if spec.SriovCard != "" {
		devices = append(devices, sriovCard(spec.SriovCard))
	}
	stores := []types.ManagedObjectReference{ds.Self}
	if spec.Image != nil {
		on := v.datastore(h, spec.Image.Datastore)
		if on == nil {
			return fail(fmt.Errorf("host %q has no datastore %q", h.Name, spec.Image.Datastore))
		}
		devices = append(devices, cdDrive(*spec.Image, on))
		if on != ds {
			g.image = &on.Self
			stores = append(stores, on.Self)
			v.link(vm.Self, on, on.Vm)
		}
	}
	if spec.MemoryMB == 0 {
		spec.MemoryMB = vm.Config.Hardware.MemoryMB
	}
	if device != nil {
		spec.ReservedMB = spec.MemoryMB
	}
	pool := v.clusterOf(h).ResourcePool
	tools := string(types.VirtualMachineToolsRunningStatusGuestToolsNotRunning)
	v.set(vm,
		"name", spec.Name,
		"config.name", spec.Name, "summary.config.name", spec.Name,
		"config.uuid", spec.UUID, "summary.config.uuid", spec.UUID,
		"config.hardware.device", devices,
		"config.hardware.memoryMB", spec.MemoryMB, "summary.config.memorySizeMB", spec.MemoryMB,
		"summary.config.memoryReservation", spec.ReservedMB,
		"network", v.networks(spec.Networks),
		"runtime.host", &h.Self, "summary.runtime.host", &h.Self,
		"resourcePool", pool,
		"datastore", stores,
		"guest.toolsRunningStatus", tools,
		// Strict clients refuse the whole `runtime` of a VM if these two
		// enumerations are empty, as the simulator leaves them.
		"runtime.faultToleranceState", types.VirtualMachineFaultToleranceStateNotConfigured,
		"runtime.recordReplayState", types.VirtualMachineRecordReplayStateInactive,
		"summary.runtime.faultToleranceState", types.VirtualMachineFaultToleranceStateNotConfigured,
		"summary.runtime.recordReplayState", types.VirtualMachineRecordReplayStateInactive,
	)
	if spec.HardwareVersion > 0 {
		vm.Config.Version = hardwareKey(spec.HardwareVersion)
	}
	if spec.Encrypted {
		vm.Config.KeyId = &types.CryptoKeyId{KeyId: "key-of-" + spec.Name}
	}
	for k, val := range spec.ExtraConfig {
		vm.Config.ExtraConfig = append(vm.Config.ExtraConfig, &types.OptionValue{Key: k, Value: val})
	}
	v.link(vm.Self, h.HostSystem, h.Vm)
	v.link(vm.Self, ds, ds.Vm)
	p := v.reg.Get(*pool).(*simulator.ResourcePool)
	v.link(vm.Self, p, p.Vm)
	v.guests[vm.Self] = g
	if err := spec.Readable.check(); err != nil {
		return fail(err)
	}
	if spec.Readable != "" {
		v.setReadable(g, spec.Readable)
	}
	if spec.PoweredOn {
		if f := v.start(g, h, who); f != nil {
			return fail(fmt.Errorf("power on: %s", message(f)))
		}
	}
	return g, nil
}

// fileName is the name of a VM in a form that is valid in a datastore.
func fileName(name string) string {
	name = strings.ReplaceAll(name, "/", "_")
	return name[:min(len(name), 80)]
}

// vmFolder gives a VM that shares its name with another one its own folder,
// because names are unique within a folder.
func (v *VCenter) vmFolder(spec VMSpec) (types.ManagedObjectReference, error) {
	name := spec.Folder
	if name == "" {
		twins := 0
		for _, g := range v.guests {
			if g.Name == spec.Name {
				twins++
			}
		}
		if twins == 0 {
			return v.dc.VmFolder, nil
		}
		name = fmt.Sprintf("%s-%d", spec.Name, twins+1)
	}
	root := v.reg.Get(v.dc.VmFolder).(*simulator.Folder)
	if e := v.reg.FindByName(name, root.ChildEntity); e != nil && e.Reference().Type == "Folder" {
		return e.Reference(), nil
	}
	client, err := vim25.NewClient(v.ctx, v.model.Service)
	if err != nil {
		return types.ManagedObjectReference{}, err
	}
	f, err := object.NewFolder(client, root.Self).CreateFolder(v.ctx, name)
	if err != nil {
		if soap.IsSoapFault(err) {
			err = fmt.Errorf("%T", soap.ToSoapFault(err).VimFault())
		}
		return types.ManagedObjectReference{}, fmt.Errorf("folder %q: %w", name, err)
	}
	return f.Reference(), nil
}

// removeVM removes a VM from the inventory.
func (v *VCenter) removeVM(g *guest) {
	v.visibility.set(g.Self, readAll)
	if g.shutdown != nil {
		g.shutdown.Stop()
	}
	if h := v.hostOf(g); h != nil {
		v.release(g, h)
		v.unlink(g.Self, h.HostSystem, h.Vm)
	}
	for _, ref := range g.Datastore {
		ds := v.reg.Get(ref).(*simulator.Datastore)
		v.unlink(g.Self, ds, ds.Vm)
	}
	if g.ResourcePool != nil {
		p := v.reg.Get(*g.ResourcePool).(*simulator.ResourcePool)
		v.unlink(g.Self, p, p.Vm)
	}
	folder := v.reg.Get(*g.Parent).(*simulator.Folder)
	delete(v.guests, g.Self)
	v.unlink(g.Self, folder, folder.ChildEntity, "childEntity")
	v.reg.Remove(v.fresh(), g.Self)
}

// removeHost removes a host and its VMs from the inventory, as a vCenter does.
func (v *VCenter) removeHost(h *host, who caller) {
	if e := v.entering[h.Self]; e != nil {
		v.endEntering(e, &types.HostNotConnected{}, who)
	}
	for _, g := range v.guests {
		if v.hostOf(g) == h {
			v.removeVM(g)
		}
	}
	cluster := v.clusterOf(h)
	v.unlink(h.Self, cluster, cluster.Host, "host")
	cluster.Summary.GetComputeResourceSummary().NumHosts--
	for _, ref := range h.Datastore {
		if ds, ok := v.reg.Get(ref).(*simulator.Datastore); ok {
			ds.Host = slices.DeleteFunc(slices.Clone(ds.Host), func(m types.DatastoreHostMount) bool { return m.Key == h.Self })
		}
	}
	delete(v.hosts, h.Self)
	v.reg.Remove(v.fresh(), h.Self)
	v.journal.add(Entry{Kind: "host", User: who.User, Object: h.Name, Ref: h.Self.Value, Detail: "removed"})
}

func shortID(id PCIID) int16 { return int16(uint16(id)) }

func parseAddress(id string) (bus, slot, function byte) {
	var domain uint16
	_, _ = fmt.Sscanf(strings.ReplaceAll(id, ".", ":"), "%04x:%02x:%02x:%x", &domain, &bus, &slot, &function)
	return bus, slot, function
}
