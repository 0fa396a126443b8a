package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vmware/govmomi"
	"github.com/vmware/govmomi/event"
	"github.com/vmware/govmomi/fault"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/property"
	"github.com/vmware/govmomi/task"
	"github.com/vmware/govmomi/view"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

const deadline = 5 * time.Second

// bench is a running simulator and a client that is logged in to it.
type bench struct {
	*testing.T
	ctx    context.Context
	lab    *lab
	client *govmomi.Client
}

func gpu(id string, device PCIID) DeviceSpec {
	return DeviceSpec{ID: id, Vendor: 0x10de, Device: device, Class: 0x0302, Passthrough: true}
}

// twoHosts is a cluster of two hosts with a GPU each, and a VM with a dynamic
// device on the first.
func twoHosts() *Spec {
	return &Spec{
		Clusters: []ClusterSpec{{
			Name: "c1",
			Hosts: []HostSpec{
				{Name: "esx1", Devices: []DeviceSpec{gpu("0000:3b:00.0", 0x2235)}, Datastores: []string{"ds"}},
				{Name: "esx2", Devices: []DeviceSpec{gpu("0000:af:00.0", 0x2235)}, Datastores: []string{"ds"}},
			},
		}},
		VMs: []VMSpec{{
			Name: "gpu1", UUID: "4217a5b0-0000-4000-8000-000000000001", Host: "esx1",
			GPU: GPUSpec{Kind: "dynamic", Vendor: 0x10de, Device: 0x2235}, PoweredOn: true, ShutdownMs: 20,
		}},
	}
}

func start(t *testing.T, spec *Spec) *bench {
	t.Helper()
	// The same tests run on either collector.
	spec.OwnCollectors = spec.OwnCollectors || os.Getenv("LAB_COLLECTOR") == "own"
	l, err := startLab(spec, "127.0.0.1:0", "admin", "pw", nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	b := &bench{T: t, ctx: ctx, lab: l}
	t.Cleanup(func() {
		cancel()
		l.close()
	})
	b.client = b.login("admin", "pw")
	return b
}

func (b *bench) login(user, password string) *govmomi.Client {
	b.Helper()
	c, err := b.tryLogin(user, password)
	if err != nil {
		b.Fatal(err)
	}
	return c
}

func (b *bench) tryLogin(user, password string) (*govmomi.Client, error) {
	u, err := url.Parse(b.lab.server.url())
	if err != nil {
		return nil, err
	}
	u.User = url.UserPassword(user, password)
	return govmomi.NewClient(b.ctx, u, true)
}

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// ctl calls the control endpoint and decodes its answer.
func (b *bench) ctl(method, path string, body, into any) {
	b.Helper()
	if status, text := b.tryCtl(method, path, body, into); status != http.StatusOK {
		b.Fatalf("%s %s: %d %s", method, path, status, text)
	}
}

func (b *bench) tryCtl(method, path string, body, into any) (int, string) {
	b.Helper()
	var in io.Reader
	if body != nil {
		j, err := json.Marshal(body)
		b.must(err)
		in = bytes.NewReader(j)
	}
	req, err := http.NewRequestWithContext(b.ctx, method, b.lab.ctl+path, in)
	b.must(err)
	res, err := http.DefaultClient.Do(req)
	b.must(err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	b.must(err)
	if into != nil {
		b.must(json.Unmarshal(text, into))
	}
	return res.StatusCode, string(text)
}

// until long-polls the state until ok returns true.
func (b *bench) until(what string, ok func(State) bool) State {
	b.Helper()
	var s State
	s.Rev = -1
	for end := time.Now().Add(deadline); time.Now().Before(end); {
		b.ctl("GET", fmt.Sprintf("/state?after=%d&waitMs=1000", s.Rev), nil, &s)
		if ok(s) {
			return s
		}
	}
	b.Fatalf("waited in vain until %s: %+v", what, s)
	return s
}

func (s State) host(name string) HostState {
	for _, h := range s.Hosts {
		if h.Name == name {
			return h
		}
	}
	return HostState{}
}

func (s State) vm(name string) VMState {
	for _, v := range s.VMs {
		if v.Name == name {
			return v
		}
	}
	return VMState{}
}

func (b *bench) vm(name string) *object.VirtualMachine {
	b.Helper()
	g, err := b.lab.v.findVM(name)
	b.must(err)
	return object.NewVirtualMachine(b.client.Client, g.Self)
}

func (b *bench) host(name string) *object.HostSystem {
	b.Helper()
	h, err := b.lab.v.findHost(name)
	b.must(err)
	return object.NewHostSystem(b.client.Client, h.Self)
}

func (b *bench) vmProperties(name string) mo.VirtualMachine {
	b.Helper()
	var m mo.VirtualMachine
	b.must(b.vm(name).Properties(b.ctx, b.vm(name).Reference(), []string{"runtime", "config", "summary", "recentTask", "datastore", "guest"}, &m))
	return m
}

func (b *bench) hostProperties(name string) mo.HostSystem {
	b.Helper()
	var m mo.HostSystem
	b.must(b.host(name).Properties(b.ctx, b.host(name).Reference(), []string{"name", "runtime", "config", "hardware", "vm", "recentTask"}, &m))
	return m
}

func (b *bench) taskInfo(ref types.ManagedObjectReference) types.TaskInfo {
	b.Helper()
	var m mo.Task
	b.must(property.DefaultCollector(b.client.Client).RetrieveOne(b.ctx, ref, []string{"info"}, &m))
	return m.Info
}

// fails waits for a task and returns the name of its fault.
func (b *bench) fails(t *object.Task, err error) string {
	b.Helper()
	b.must(err)
	_, err = t.WaitForResult(b.ctx)
	if err == nil {
		b.Fatal("the task succeeded")
	}
	var failure task.Error
	if e, ok := err.(task.Error); ok {
		failure = e
	} else {
		b.Fatalf("%T %v", err, err)
	}
	if failure.LocalizedMessage == "" || strings.HasPrefix(failure.LocalizedMessage, "*types") {
		b.Errorf("localizedMessage %q", failure.LocalizedMessage)
	}
	return strings.TrimPrefix(fmt.Sprintf("%T", failure.Fault()), "*types.")
}

func (b *bench) succeeds(t *object.Task, err error) {
	b.Helper()
	b.must(err)
	_, err = t.WaitForResult(b.ctx)
	b.must(err)
}

func (b *bench) want(got, want any) {
	b.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		b.Fatalf("got %v, want %v", got, want)
	}
}

func (b *bench) journal() []Entry {
	b.Helper()
	var j struct{ Entries []Entry }
	b.ctl("GET", "/journal", nil, &j)
	return j.Entries
}

func TestRecentTasksOfAnObjectAreLimited(t *testing.T) {
	spec := twoHosts()
	spec.RecentTasks = 2
	b := start(t, spec)
	var tasks []types.ManagedObjectReference
	for range 3 {
		enter, err := b.host("esx1").EnterMaintenanceMode(b.ctx, 0, false, nil)
		b.must(err)
		b.must(enter.Cancel(b.ctx))
		tasks = append(tasks, enter.Reference())
	}
	b.want(b.hostProperties("esx1").RecentTask, tasks[1:])
}

func TestEnterRunsUntilTheLastVMIsOff(t *testing.T) {
	b := start(t, twoHosts())
	enter, err := b.host("esx1").EnterMaintenanceMode(b.ctx, 0, false, nil)
	b.must(err)
	info := b.taskInfo(enter.Reference())
	b.want(info.State, "running")
	b.want(info.Name, "EnterMaintenanceMode_Task")
	b.want(info.DescriptionId, "HostSystem.enterMaintenanceMode")
	b.want(info.EntityName, "esx1")
	b.want(info.Cancelable, true)
	b.want(info.Reason.(*types.TaskReasonUser).UserName, "admin")
	b.want(b.hostProperties("esx1").RecentTask, []types.ManagedObjectReference{enter.Reference()})
	b.want(b.hostProperties("esx1").Runtime.InMaintenanceMode, false)
	b.want(b.fails(b.host("esx1").EnterMaintenanceMode(b.ctx, 0, false, nil)), "InvalidState")

	b.must(b.vm("gpu1").ShutdownGuest(b.ctx))
	_, err = enter.WaitForResult(b.ctx)
	b.must(err)
	b.want(b.hostProperties("esx1").Runtime.InMaintenanceMode, true)

	b.want(b.fails(b.vm("gpu1").PowerOn(b.ctx)), "InvalidState")
	b.want(b.fails(b.vm("gpu1").Reconfigure(b.ctx, types.VirtualMachineConfigSpec{Annotation: "x"})), "InvalidState")
	exit, err := b.host("esx1").ExitMaintenanceMode(b.ctx, 0)
	b.succeeds(exit, err)
	b.want(b.hostProperties("esx1").Runtime.InMaintenanceMode, false)
	b.succeeds(b.vm("gpu1").PowerOn(b.ctx))
	b.want(b.fails(b.host("esx1").ExitMaintenanceMode(b.ctx, 0)), "InvalidState")
}

func TestEnterIsCancelled(t *testing.T) {
	b := start(t, twoHosts())
	enter, err := b.host("esx1").EnterMaintenanceMode(b.ctx, 0, false, nil)
	b.must(err)
	b.must(enter.Cancel(b.ctx))
	info := b.taskInfo(enter.Reference())
	b.want(info.State, "error")
	b.want(info.Cancelled, true)
	b.want(fault.Is(task.Error{LocalizedMethodFault: info.Error}, &types.RequestCanceled{}), true)
	b.succeeds(b.vm("gpu1").PowerOff(b.ctx))
	b.want(b.taskInfo(enter.Reference()).State, "error")
	b.want(b.hostProperties("esx1").Runtime.InMaintenanceMode, false)
	if enter.Cancel(b.ctx) == nil {
		t.Fatal("an ended task was cancelled")
	}
}

func TestEnterWaitsForPoweredOffVMsIfAsked(t *testing.T) {
	b := start(t, twoHosts())
	enter, err := b.host("esx1").EnterMaintenanceMode(b.ctx, 0, true, nil)
	b.must(err)
	b.succeeds(b.vm("gpu1").PowerOff(b.ctx))
	b.want(b.taskInfo(enter.Reference()).State, "running")
	b.ctl("POST", "/vms/gpu1/move", map[string]string{"host": "esx2"}, nil)
	_, err = enter.WaitForResult(b.ctx)
	b.must(err)
}

func TestDRSMovesPoweredOffVMsIfAsked(t *testing.T) {
	spec := twoHosts()
	spec.Clusters[0].DRS = DRSSpec{Enabled: true, Behavior: "fullyAutomated"}
	b := start(t, spec)
	b.ctl("DELETE", "/hosts/esx2/devices/0000:af:00.0", nil, nil)
	enter, err := b.host("esx1").EnterMaintenanceMode(b.ctx, 0, true, nil)
	b.must(err)
	b.succeeds(b.vm("gpu1").PowerOff(b.ctx))
	_, err = enter.WaitForResult(b.ctx)
	b.must(err)
	// It is registered there, although it cannot start there.
	s := b.until("gpu1 has left", func(s State) bool { return s.vm("gpu1").Host == "esx2" })
	b.want(s.vm("gpu1").Power, "poweredOff")
	b.want(b.fails(b.vm("gpu1").PowerOn(b.ctx)), "NoCompatibleHost")
}

func TestEnterTimesOut(t *testing.T) {
	b := start(t, twoHosts())
	var answer struct{ Task string }
	b.ctl("POST", "/hosts/esx1/enter", map[string]any{"timeoutMs": 30}, &answer)
	b.until("the host no longer enters", func(s State) bool { return s.host("esx1").Entering == nil })
	info := b.taskInfo(types.ManagedObjectReference{Type: "Task", Value: answer.Task})
	b.want(info.State, "error")
	b.want(fmt.Sprintf("%T", info.Error.Fault), "*types.Timedout")
	b.want(info.Reason.(*types.TaskReasonUser).UserName, "operator")
}

func TestUpdatesArrive(t *testing.T) {
	b := start(t, twoHosts())
	m := view.NewManager(b.client.Client)
	hosts, err := m.CreateContainerView(b.ctx, b.client.ServiceContent.RootFolder, []string{"HostSystem"}, true)
	b.must(err)
	seen := make(chan string, 100)
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	go func() {
		filter := new(property.WaitFilter).Add(hosts.Reference(), "HostSystem", []string{"name", "runtime.inMaintenanceMode"}, hosts.TraversalSpec())
		_ = property.WaitForUpdates(ctx, property.DefaultCollector(b.client.Client), filter, func(updates []types.ObjectUpdate) bool {
			for _, u := range updates {
				for _, c := range u.ChangeSet {
					seen <- fmt.Sprint(u.Kind, " ", c.Name, "=", c.Val)
				}
			}
			return false
		})
	}()
	await := func(want string) {
		t.Helper()
		for {
			select {
			case got := <-seen:
				if got == want {
					return
				}
			case <-time.After(deadline):
				t.Fatalf("no update %q", want)
			}
		}
	}
	await("enter name=esx1")
	b.ctl("POST", "/vms/gpu1/off", nil, nil)
	b.ctl("POST", "/hosts/esx1/enter", nil, nil)
	await("modify runtime.inMaintenanceMode=true")
	b.ctl("POST", "/hosts/esx1/exit", nil, nil)
	await("modify runtime.inMaintenanceMode=false")
	b.ctl("POST", "/hosts", map[string]any{"cluster": "c1", "name": "esx3", "datastores": []string{"ds"}}, nil)
	await("enter name=esx3")
	b.ctl("POST", "/hosts/esx3/rename", map[string]any{"name": "esx4"}, nil)
	await("modify name=esx4")
}

func TestPowerAndDevices(t *testing.T) {
	spec := twoHosts()
	spec.VMs = append(spec.VMs, VMSpec{Name: "gpu2", Host: "esx1", GPU: GPUSpec{Kind: "dynamic", Vendor: 0x10de, Device: 0x2235}, Tools: new(bool)})
	b := start(t, spec)
	h := b.hostProperties("esx1")
	b.want(len(h.Config.AssignableHardwareBinding), 1)
	b.want(h.Config.AssignableHardwareBinding[0].InstanceId, "0000:3b:00.0")
	last := h.Hardware.PciDevice[len(h.Hardware.PciDevice)-1]
	b.want(last.VendorId, 0x10de)
	b.want(last.Bus, 0x3b)
	vm := b.vmProperties("gpu1")
	b.want(vm.Runtime.FaultToleranceState, "notConfigured")
	b.want(vm.Runtime.RecordReplayState, "inactive")
	b.want(object.VirtualDeviceList(vm.Config.Hardware.Device).SelectByType((*types.VirtualPCIPassthrough)(nil))[0].GetVirtualDevice().Backing.(*types.VirtualPCIPassthroughDynamicBackingInfo).AssignedId, "0000:3b:00.0")

	b.want(b.fails(b.vm("gpu2").PowerOn(b.ctx)), "InsufficientResourcesFault")
	b.want(b.fails(b.vm("gpu2").PowerOff(b.ctx)), "InvalidPowerState")
	b.want(b.fails(b.vm("gpu1").PowerOn(b.ctx)), "InvalidPowerState")
	b.succeeds(b.vm("gpu1").PowerOff(b.ctx))
	b.want(len(b.hostProperties("esx1").Config.AssignableHardwareBinding), 0)
	b.succeeds(b.vm("gpu2").PowerOn(b.ctx))
	err := b.vm("gpu2").ShutdownGuest(b.ctx)
	if !fault.Is(err, &types.ToolsUnavailable{}) {
		t.Fatalf("%v", err)
	}
	b.ctl("PATCH", "/vms/gpu2", map[string]any{"tools": true, "ignoreShutdown": true}, nil)
	b.must(b.vm("gpu2").ShutdownGuest(b.ctx))
	b.ctl("PATCH", "/vms/gpu2", map[string]any{"ignoreShutdown": false}, nil)
	b.must(b.vm("gpu2").ShutdownGuest(b.ctx))
	b.until("gpu2 is off", func(s State) bool { return s.vm("gpu2").Power == "poweredOff" })
	if err := b.vm("gpu2").ShutdownGuest(b.ctx); !fault.Is(err, &types.InvalidPowerState{}) {
		t.Fatalf("%v", err)
	}
}

func TestRelocate(t *testing.T) {
	spec := twoHosts()
	spec.Clusters[0].Hosts = append(spec.Clusters[0].Hosts, HostSpec{Name: "esx3", Datastores: []string{"other"}})
	spec.Delays.RelocateMs = 30
	b := start(t, spec)
	to := func(name string) (*object.Task, error) {
		ref := b.host(name).Reference()
		return b.vm("gpu1").Relocate(b.ctx, types.VirtualMachineRelocateSpec{
			Host: &ref,
			DeviceChange: []types.BaseVirtualDeviceConfigSpec{&types.VirtualDeviceConfigSpec{
				Operation: types.VirtualDeviceConfigSpecOperationRemove,
				Device:    &types.VirtualPCIPassthrough{VirtualDevice: types.VirtualDevice{Key: deviceKey}},
			}},
		}, types.VirtualMachineMovePriorityDefaultPriority)
	}
	b.want(b.fails(to("esx2")), "DisallowedMigrationDeviceAttached")
	b.succeeds(b.vm("gpu1").PowerOff(b.ctx))
	b.want(b.fails(to("esx3")), "CannotAccessVmConfig")
	b.ctl("POST", "/hosts/esx2/enter", nil, nil)
	b.until("esx2 is in maintenance", func(s State) bool { return s.host("esx2").InMaintenance })
	b.want(b.fails(to("esx2")), "InvalidState")
	b.ctl("POST", "/hosts/esx2/exit", nil, nil)
	b.ctl("POST", "/hosts/esx2/connection", map[string]any{"state": "disconnected"}, nil)
	b.want(b.fails(to("esx2")), "InvalidState")
	b.ctl("POST", "/hosts/esx2/connection", map[string]any{"state": "connected"}, nil)

	first, err := to("esx2")
	b.must(err)
	b.want(b.fails(to("esx2")), "TaskInProgress")
	b.succeeds(first, nil)
	vm := b.vmProperties("gpu1")
	b.want(*vm.Runtime.Host, b.host("esx2").Reference())
	b.want(b.hostProperties("esx1").Vm, []types.ManagedObjectReference{})
	b.want(b.hostProperties("esx2").Vm, []types.ManagedObjectReference{vm.Self})
	if len(object.VirtualDeviceList(vm.Config.Hardware.Device).SelectByType((*types.VirtualPCIPassthrough)(nil))) != 1 {
		t.Fatal("the relocation changed a PCI device")
	}
	b.succeeds(b.vm("gpu1").PowerOn(b.ctx))
	b.want(b.hostProperties("esx2").Config.AssignableHardwareBinding[0].InstanceId, "0000:af:00.0")
}

func TestStaticDeviceIsReconfigured(t *testing.T) {
	spec := twoHosts()
	spec.VMs[0].GPU = GPUSpec{Kind: "static", ID: "0000:3b:00.0"}
	b := start(t, spec)
	b.succeeds(b.vm("gpu1").PowerOff(b.ctx))
	ref := b.host("esx2").Reference()
	b.succeeds(b.vm("gpu1").Relocate(b.ctx, types.VirtualMachineRelocateSpec{Host: &ref}, types.VirtualMachineMovePriorityDefaultPriority))
	b.want(b.fails(b.vm("gpu1").PowerOn(b.ctx)), "GenericVmConfigFault")

	var cluster mo.ClusterComputeResource
	b.must(property.DefaultCollector(b.client.Client).RetrieveOne(b.ctx, *b.lab.v.hosts[ref].Parent, []string{"environmentBrowser"}, &cluster))
	res, err := methods.QueryConfigTarget(b.ctx, b.client, &types.QueryConfigTarget{This: *cluster.EnvironmentBrowser, Host: &ref})
	b.must(err)
	found := res.Returnval.PciPassthrough[0].GetVirtualMachinePciPassthroughInfo()
	b.want(len(res.Returnval.DynamicPassthrough), 1)
	before := len(b.vmProperties("gpu1").RecentTask)
	b.succeeds(b.vm("gpu1").Reconfigure(b.ctx, types.VirtualMachineConfigSpec{
		ChangeVersion: b.vmProperties("gpu1").Config.ChangeVersion,
		DeviceChange: []types.BaseVirtualDeviceConfigSpec{&types.VirtualDeviceConfigSpec{
			Operation: types.VirtualDeviceConfigSpecOperationEdit,
			Device: &types.VirtualPCIPassthrough{VirtualDevice: types.VirtualDevice{
				Key: deviceKey, ControllerKey: 100,
				Backing: &types.VirtualPCIPassthroughDeviceBackingInfo{
					Id: found.PciDevice.Id, DeviceId: "2235", SystemId: found.SystemId, VendorId: found.PciDevice.VendorId,
				},
			}},
		}},
	}))
	b.want(len(b.vmProperties("gpu1").RecentTask), before+1)
	b.succeeds(b.vm("gpu1").PowerOn(b.ctx))
	b.ctl("GET", "/state", nil, nil)
	b.want(b.until("on", func(State) bool { return true }).vm("gpu1").Device, "0000:af:00.0")
}

func TestDRSPlaces(t *testing.T) {
	spec := twoHosts()
	spec.Clusters[0].DRS = DRSSpec{Enabled: true, Behavior: "fullyAutomated"}
	spec.VMs = append(spec.VMs, VMSpec{Name: "plain", Host: "esx1", PoweredOn: true})
	b := start(t, spec)
	b.ctl("POST", "/hosts/esx1/enter", nil, nil)
	b.until("DRS moved what it could", func(s State) bool { return s.vm("plain").Host == "esx2" })
	b.succeeds(b.vm("gpu1").PowerOff(b.ctx))
	b.until("esx1 is in maintenance", func(s State) bool { return s.host("esx1").InMaintenance })

	dc := object.NewDatacenter(b.client.Client, b.lab.v.dc.Self)
	multi := func() types.ClusterPowerOnVmResult {
		t.Helper()
		pt, err := dc.PowerOnVM(b.ctx, []types.ManagedObjectReference{b.vm("gpu1").Reference()})
		b.must(err)
		info, err := pt.WaitForResult(b.ctx)
		b.must(err)
		return info.Result.(types.ClusterPowerOnVmResult)
	}
	// The device of the only other host is removed first.
	b.ctl("DELETE", "/hosts/esx2/devices/0000:af:00.0", nil, nil)
	result := multi()
	b.want(fmt.Sprintf("%T", result.NotAttempted[0].Fault.Fault), "*types.NoCompatibleHost")
	b.want(b.fails(b.vm("gpu1").PowerOn(b.ctx)), "NoCompatibleHost")
	b.ctl("POST", "/hosts/esx2/devices", gpu("0000:af:00.0", 0x2235), nil)
	b.want(len(multi().Attempted), 1)
	s := b.until("gpu1 is on", func(s State) bool { return s.vm("gpu1").Power == "poweredOn" })
	b.want(s.vm("gpu1").Host, "esx2")
	b.want(s.vm("gpu1").Boots, 2)
}

func TestDRSOverride(t *testing.T) {
	spec := twoHosts()
	spec.Clusters[0].DRS = DRSSpec{Enabled: true, Behavior: "fullyAutomated", VMOverrides: []VMOverride{{VM: "gpu1", Behavior: "manual"}}}
	b := start(t, spec)
	var cluster mo.ClusterComputeResource
	b.must(property.DefaultCollector(b.client.Client).RetrieveOne(b.ctx, b.lab.v.findCluster("c1").Self, []string{"configurationEx"}, &cluster))
	config := cluster.ConfigurationEx.(*types.ClusterConfigInfoEx)
	b.want(config.DrsConfig.DefaultVmBehavior, "fullyAutomated")
	b.want(config.DrsVmConfig[0].Behavior, "manual")
	b.ctl("POST", "/vms/gpu1/off", nil, nil)
	b.ctl("POST", "/hosts/esx1/enter", nil, nil)
	b.until("esx1 is in maintenance", func(s State) bool { return s.host("esx1").InMaintenance })
	b.want(b.fails(b.vm("gpu1").PowerOn(b.ctx)), "InvalidState")
}

func TestDuplicates(t *testing.T) {
	spec := twoHosts()
	twin := spec.VMs[0]
	twin.Host = "esx2"
	spec.VMs = append(spec.VMs, twin)
	b := start(t, spec)
	refs, err := object.NewSearchIndex(b.client.Client).FindAllByUuid(b.ctx, nil, twin.UUID, true, nil)
	b.must(err)
	b.want(len(refs), 2)
	status, _ := b.tryCtl("POST", "/vms/gpu1/off", nil, nil)
	b.want(status, http.StatusConflict)
	b.ctl("POST", "/vms/"+refs[0].Reference().Value+"/off", nil, nil)
}

func TestSessions(t *testing.T) {
	b := start(t, twoHosts())
	if _, err := b.tryLogin("admin", "wrong"); !fault.Is(err, &types.InvalidLogin{}) {
		t.Fatalf("%v", err)
	}
	pc, err := property.DefaultCollector(b.client.Client).Create(b.ctx)
	b.must(err)
	waiting := make(chan error, 1)
	go func() {
		waiting <- property.WaitForUpdates(b.ctx, pc, new(property.WaitFilter).Add(b.host("esx1").Reference(), "HostSystem", []string{"name"}),
			func([]types.ObjectUpdate) bool { return false })
	}()
	time.Sleep(50 * time.Millisecond)
	b.ctl("POST", "/sessions/kill", nil, nil)
	select {
	case err = <-waiting:
		if err == nil {
			t.Fatal("the wait succeeded")
		}
	case <-time.After(deadline):
		t.Fatal("the wait goes on")
	}
	_, err = methods.GetCurrentTime(b.ctx, b.client)
	if !fault.Is(err, &types.NotAuthenticated{}) || !strings.Contains(err.Error(), "not authenticated") {
		t.Fatalf("%v", err)
	}
	b.want(b.until("no session", func(s State) bool { return s.Sessions == 0 }).Sessions, 0)
	b.client = b.login("admin", "pw")
	b.want(b.until("a session", func(s State) bool { return s.Sessions == 1 }).Sessions, 1)
	b.must(b.client.Logout(b.ctx))
	b.until("no session again", func(s State) bool { return s.Sessions == 0 })
}

func TestRestartThatRefusesLogins(t *testing.T) {
	b := start(t, twoHosts())
	const refused = 300 * time.Millisecond
	b.ctl("POST", "/restart", map[string]any{"downMs": 10, "refuseLoginsMs": refused.Milliseconds()}, nil)
	login := func() error {
		_, err := b.tryLogin("admin", "pw")
		return err
	}
	if err := login(); !fault.Is(err, &types.InvalidLogin{}) {
		t.Fatalf("%v", err)
	}
	for end := time.Now().Add(10 * time.Second); login() != nil; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("logins are still refused")
		}
	}
}

func TestRestartThatLosesTasks(t *testing.T) {
	b := start(t, twoHosts())
	b.ctl("POST", "/hosts/esx1/enter", nil, nil)
	b.ctl("POST", "/restart", map[string]any{"downMs": 10, "loseTasks": true}, nil)
	b.client = b.login("admin", "pw")
	enter := b.hostProperties("esx1").RecentTask[0]
	b.want(b.taskInfo(enter).State, "error")
	b.want(b.hostProperties("esx1").Runtime.InMaintenanceMode, false)
	b.succeeds(b.vm("gpu1").PowerOff(b.ctx))
	b.until("esx1 is in maintenance", func(s State) bool { return s.host("esx1").InMaintenance })
}

func TestRestart(t *testing.T) {
	for _, with503 := range []bool{false, true} {
		b := start(t, twoHosts())
		b.ctl("POST", "/hosts/esx1/enter", nil, nil)
		before := b.lab.server.url()
		b.ctl("POST", "/restart", map[string]any{"downMs": 30, "with503": with503}, nil)
		b.want(b.lab.server.url(), before)
		_, err := methods.GetCurrentTime(b.ctx, b.client)
		if err == nil {
			t.Fatal("the session was kept over the restart")
		}
		b.client = b.login("admin", "pw")
		enter := b.hostProperties("esx1").RecentTask[0]
		b.want(b.taskInfo(enter).State, "running")
		b.succeeds(b.vm("gpu1").PowerOff(b.ctx))
		b.until("esx1 is in maintenance", func(s State) bool { return s.host("esx1").InMaintenance })
		b.want(b.taskInfo(enter).State, "success")
	}
}

func TestFaults(t *testing.T) {
	b := start(t, twoHosts())
	b.ctl("POST", "/faults", map[string]any{"method": "CurrentTime", "kind": "soapFault", "fault": "NoPermission", "count": 1}, nil)
	if _, err := methods.GetCurrentTime(b.ctx, b.client); !fault.Is(err, &types.NoPermission{}) {
		t.Fatalf("%v", err)
	}
	for _, kind := range []string{"http503", "htmlPage", "reset"} {
		b.ctl("POST", "/faults", map[string]any{"method": "CurrentTime", "kind": kind, "count": 1}, nil)
		if _, err := methods.GetCurrentTime(b.ctx, b.client); err == nil {
			t.Fatalf("%s was not applied", kind)
		}
	}
	b.ctl("POST", "/faults", map[string]any{"method": "PowerOffVM_Task", "object": "gpu1", "kind": "taskError", "fault": "SystemError", "skip": 0, "count": 1, "delayMs": 10}, nil)
	b.want(b.fails(b.vm("gpu1").PowerOff(b.ctx)), "SystemError")
	b.ctl("POST", "/faults", map[string]any{"method": "PowerOffVM_Task", "kind": "loseReply", "count": 1}, nil)
	if _, err := b.vm("gpu1").PowerOff(b.ctx); err == nil {
		t.Fatal("the reply was not lost")
	}
	b.until("gpu1 is off all the same", func(s State) bool { return s.vm("gpu1").Power == "poweredOff" })
	var list struct{ Faults []Rule }
	b.ctl("GET", "/faults", nil, &list)
	b.want(list.Faults[len(list.Faults)-1].Hits, 1)
	b.ctl("DELETE", "/faults", nil, nil)
	_, err := methods.GetCurrentTime(b.ctx, b.client)
	b.must(err)
	status, _ := b.tryCtl("POST", "/faults", map[string]any{"kind": "nonsense"}, nil)
	b.want(status, http.StatusBadRequest)
}

func TestJournal(t *testing.T) {
	b := start(t, twoHosts())
	b.ctl("POST", "/hosts/esx1/enter", nil, nil)
	b.must(b.vm("gpu1").ShutdownGuest(b.ctx))
	b.until("esx1 is in maintenance", func(s State) bool { return s.host("esx1").InMaintenance })
	var entries []string
	for _, e := range b.journal() {
		entries = append(entries, strings.Join(strings.Fields(fmt.Sprintln(e.Kind, e.User, e.Method, e.Object, e.Detail, e.Cause)), " "))
	}
	want := []string{
		"power spec gpu1 poweredOn",
		"session admin login",
		"call operator EnterMaintenanceMode_Task esx1",
		"maintenance operator esx1 entering",
		"call admin ShutdownGuest gpu1",
		"power admin gpu1 poweredOff ShutdownGuest",
		"maintenance operator esx1 entered",
	}
	b.want(strings.Join(entries, "\n"), strings.Join(want, "\n"))
}

func TestUserEventIsInTheHistoryAndTheJournal(t *testing.T) {
	b := start(t, twoHosts())
	vm, host := b.vm("gpu1").Reference(), b.host("esx1").Reference()
	events := event.NewManager(b.client.Client)
	b.must(events.LogUserEvent(b.ctx, vm, "drained"))
	b.must(events.LogUserEvent(b.ctx, host, strings.Repeat("x", messageBytes+1)))
	listed := func(entity types.ManagedObjectReference) []string {
		t.Helper()
		found, err := events.QueryEvents(b.ctx, types.EventFilterSpec{
			Entity:      &types.EventFilterSpecByEntity{Entity: entity, Recursion: types.EventFilterSpecRecursionOptionSelf},
			EventTypeId: []string{"GeneralUserEvent"},
		})
		b.must(err)
		var texts []string
		for _, e := range found {
			texts = append(texts, e.GetEvent().UserName+": "+e.GetEvent().FullFormattedMessage)
		}
		return texts
	}
	b.want(listed(vm), []string{"admin: User logged event: drained"})
	// That of the VM names its host as well.
	b.want(len(listed(host)), 2)
	var entries []string
	for _, e := range b.journal() {
		if e.Kind == "event" {
			entries = append(entries, fmt.Sprint(e.User, " ", e.Object, " ", len(e.Detail)))
		}
	}
	b.want(entries, []string{"admin gpu1 7", fmt.Sprint("admin esx1 ", messageBytes)})
	for entity, want := range map[types.ManagedObjectReference]string{
		{Type: "VirtualMachine", Value: "vm-0"}: "ManagedObjectNotFound",
		*b.client.ServiceContent.EventManager:   "InvalidArgument",
	} {
		err := events.LogUserEvent(b.ctx, entity, "text")
		if err == nil || !strings.Contains(fmt.Sprintf("%#v", soap.ToSoapFault(err).VimFault()), want) {
			t.Errorf("%v: %v, want %s", entity, err, want)
		}
	}
	b.must(events.LogUserEvent(b.ctx, b.client.ServiceContent.RootFolder, "on all"))
}

func TestCustomAttributes(t *testing.T) {
	b := start(t, twoHosts())
	vm, host := b.vm("gpu1").Reference(), b.host("esx1").Reference()
	manager := object.NewCustomFieldsManager(b.client.Client)
	status, _ := b.tryCtl("POST", "/attributes", attributeSpec{}, nil)
	b.want(status, http.StatusBadRequest)
	b.ctl("POST", "/attributes", attributeSpec{Name: "state", Type: "VirtualMachine"}, nil)
	status, _ = b.tryCtl("POST", "/attributes", attributeSpec{Name: "state"}, nil)
	b.want(status, http.StatusConflict)
	key, err := manager.FindKey(b.ctx, "state")
	b.must(err)
	for _, value := range []string{"drained", "", "gone"} {
		b.must(manager.Set(b.ctx, vm, key, value))
	}
	var read mo.VirtualMachine
	b.must(property.DefaultCollector(b.client.Client).RetrieveOne(b.ctx, vm, []string{"customValue"}, &read))
	b.want(len(read.CustomValue), 1)
	b.want(read.CustomValue[0].(*types.CustomFieldStringValue).Value, "gone")
	for entity, want := range map[types.ManagedObjectReference]string{
		{Type: "VirtualMachine", Value: "vm-0"}: "ManagedObjectNotFound",
		host:                                    "InvalidArgument",
	} {
		err := manager.Set(b.ctx, entity, key, "text")
		if err == nil || !strings.Contains(fmt.Sprintf("%#v", soap.ToSoapFault(err).VimFault()), want) {
			t.Errorf("%v: %v, want %s", entity, err, want)
		}
	}
	var entries []string
	for _, e := range b.journal() {
		if e.Kind == "attribute" {
			entries = append(entries, fmt.Sprint(e.User, " ", e.Object, " ", e.Cause, "=", e.Detail))
		}
	}
	b.want(entries, []string{"admin gpu1 state=drained", "admin gpu1 state=", "admin gpu1 state=gone"})

	owner := attributeSpec{Name: "owner", Type: "VirtualMachine", Values: map[string]string{"gpu1": "tenant-a"}}
	b.ctl("POST", "/attributes", owner, nil)
	read = mo.VirtualMachine{}
	b.must(property.DefaultCollector(b.client.Client).RetrieveOne(b.ctx, vm, []string{"customValue", "availableField"}, &read))
	b.want(len(read.AvailableField), 2)
	b.want(read.CustomValue[len(read.CustomValue)-1].(*types.CustomFieldStringValue).Value, "tenant-a")
	status, _ = b.tryCtl("POST", "/attributes", attributeSpec{Name: "x", Values: map[string]string{"no-such-vm": "y"}}, nil)
	b.want(status, http.StatusNotFound)
}

func TestRecentTaskIsNotPushed(t *testing.T) {
	spec := twoHosts()
	spec.PushRecentTask = new(bool)
	b := start(t, spec)
	hosts, err := view.NewManager(b.client.Client).CreateContainerView(b.ctx, b.client.ServiceContent.RootFolder, []string{"HostSystem"}, true)
	b.must(err)
	pc, err := property.DefaultCollector(b.client.Client).Create(b.ctx)
	b.must(err)
	_, err = methods.CreateFilter(b.ctx, b.client, &types.CreateFilter{This: pc.Reference(), Spec: types.PropertyFilterSpec{
		PropSet: []types.PropertySpec{
			{Type: "HostSystem", PathSet: []string{"recentTask", "runtime.inMaintenanceMode"}},
			{Type: "Task", PathSet: []string{"info"}},
		},
		ObjectSet: []types.ObjectSpec{{Obj: hosts.Reference(), Skip: types.NewBool(true), SelectSet: []types.BaseSelectionSpec{
			&types.TraversalSpec{Type: "ContainerView", Path: "view", SelectSet: []types.BaseSelectionSpec{
				&types.TraversalSpec{Type: "HostSystem", Path: "recentTask"},
			}},
		}}},
	}})
	b.must(err)
	wait := func(version string) *types.UpdateSet {
		t.Helper()
		res, err := methods.WaitForUpdatesEx(b.ctx, b.client, &types.WaitForUpdatesEx{This: pc.Reference(), Version: version, Options: &types.WaitOptions{MaxWaitSeconds: types.NewInt32(1)}})
		b.must(err)
		return res.Returnval
	}
	first := wait("")
	b.ctl("POST", "/hosts/esx1/enter", nil, nil)
	if set := wait(first.Version); set != nil {
		t.Fatalf("pushed: %+v", set)
	}
	b.want(len(b.hostProperties("esx1").RecentTask), 1)
	b.ctl("POST", "/vms/gpu1/off", nil, nil)
	set := wait(first.Version)
	b.want(set.FilterSet[0].ObjectSet[0].ChangeSet[0].Name, "runtime.inMaintenanceMode")
}

func TestWithheldPrivilegeIsMissingOnItsObjectOnly(t *testing.T) {
	b := start(t, twoHosts())
	vm, host := b.vm("gpu1").Reference(), b.host("esx2").Reference()
	granted := func(id string) []bool {
		t.Helper()
		res, err := methods.HasPrivilegeOnEntities(b.ctx, b.client, &types.HasPrivilegeOnEntities{
			This:   *b.client.ServiceContent.AuthorizationManager,
			Entity: []types.ManagedObjectReference{vm, host}, SessionId: "mine", PrivId: []string{id},
		})
		if err != nil {
			t.Fatal(err)
		}
		var granted []bool
		for _, entity := range res.Returnval {
			granted = append(granted, entity.PrivAvailability[0].IsGranted)
		}
		return granted
	}
	b.want(granted("Resource.ColdMigrate"), []bool{true, true})
	withheld := []Withheld{{Privilege: "Resource.ColdMigrate", Object: "esx2"}, {Privilege: "System.Read"}}
	b.ctl("PATCH", "/settings", map[string]any{"withheld": withheld}, nil)
	b.want(granted("Resource.ColdMigrate"), []bool{true, false})
	b.want(granted("System.Read"), []bool{false, false})
	b.want(granted("System.View"), []bool{true, true})
	b.ctl("PATCH", "/settings", map[string]any{"withheld": []Withheld{}}, nil)
	b.want(granted("Resource.ColdMigrate"), []bool{true, true})
}

func TestVMsAreRemovedWithTheirHost(t *testing.T) {
	b := start(t, twoHosts())
	b.ctl("POST", "/vms/gpu1/off", nil, nil)
	b.until("off", func(s State) bool { return s.vm("gpu1").Power == "poweredOff" })
	b.ctl("DELETE", "/hosts/esx1", nil, nil)
	s := b.until("gone", func(s State) bool { return len(s.Hosts) == 1 && len(s.VMs) == 0 })
	b.want(s.Hosts[0].Name, "esx2")
	b.ctl("POST", "/hosts", map[string]any{"cluster": "c1", "name": "esx1", "datastores": []string{"ds"}, "devices": []DeviceSpec{gpu("0000:3b:00.0", 0x2235)}}, nil)
	b.ctl("POST", "/vms", twoHosts().VMs[0], nil)
	b.until("back", func(s State) bool { return s.vm("gpu1").Power == "poweredOn" && s.vm("gpu1").Host == "esx1" })
}

// threeHosts is a cluster without DRS of three hosts with a GPU each, the VM on
// the first of them.
func threeHosts() *Spec {
	spec := twoHosts()
	spec.Clusters[0].Hosts = append(spec.Clusters[0].Hosts,
		HostSpec{Name: "esx3", Devices: []DeviceSpec{gpu("0000:d8:00.0", 0x2235)}, Datastores: []string{"ds"}})
	return spec
}

func TestRuleOfAHostAppliesToRelocationsToItOnly(t *testing.T) {
	b := start(t, threeHosts())
	b.ctl("POST", "/faults", map[string]any{"method": "RelocateVM_Task", "kind": "taskError", "fault": "VirtualHardwareVersionNotSupported", "host": "esx2"}, nil)
	b.succeeds(b.vm("gpu1").PowerOff(b.ctx))
	to := func(name string) (*object.Task, error) {
		ref := b.host(name).Reference()
		return b.vm("gpu1").Relocate(b.ctx, types.VirtualMachineRelocateSpec{Host: &ref}, types.VirtualMachineMovePriorityDefaultPriority)
	}
	b.want(b.fails(to("esx2")), "VirtualHardwareVersionNotSupported")
	b.succeeds(to("esx3"))
	b.want(b.fails(to("esx2")), "VirtualHardwareVersionNotSupported")
}

func TestRuleOfAHostAppliesToPowerOnsOnItOnly(t *testing.T) {
	b := start(t, threeHosts())
	b.ctl("POST", "/faults", map[string]any{"method": "PowerOnVM_Task", "kind": "taskError", "fault": "GenericVmConfigFault", "host": "esx1"}, nil)
	b.succeeds(b.vm("gpu1").PowerOff(b.ctx))
	b.want(b.fails(b.vm("gpu1").PowerOn(b.ctx)), "GenericVmConfigFault")
	there := b.host("esx2").Reference()
	on, err := methods.PowerOnVM_Task(b.ctx, b.client, &types.PowerOnVM_Task{This: b.vm("gpu1").Reference(), Host: &there})
	b.must(err)
	b.succeeds(object.NewTask(b.client.Client, on.Returnval), nil)
	b.want(*b.vmProperties("gpu1").Runtime.Host, there)
}

func TestRuleOfAHostAppliesToOneVMOfPowerOnMultiVM(t *testing.T) {
	spec := threeHosts()
	spec.Clusters[0].DRS = DRSSpec{Enabled: true, Behavior: "fullyAutomated"}
	b := start(t, spec)
	b.ctl("POST", "/faults", map[string]any{"method": "PowerOnMultiVM_Task", "kind": "taskError", "fault": "InsufficientFailoverResourcesFault", "host": "esx1"}, nil)
	b.succeeds(b.vm("gpu1").PowerOff(b.ctx))
	task, err := object.NewDatacenter(b.client.Client, b.lab.v.dc.Self).PowerOnVM(b.ctx, []types.ManagedObjectReference{b.vm("gpu1").Reference()})
	b.must(err)
	info, err := task.WaitForResult(b.ctx)
	b.must(err)
	result := info.Result.(types.ClusterPowerOnVmResult)
	b.want(fmt.Sprintf("%T", result.NotAttempted[0].Fault.Fault), "*types.InsufficientFailoverResourcesFault")
	b.want(b.until("it stays off", func(State) bool { return true }).vm("gpu1").Power, "poweredOff")
}

func TestPowerOnUsesTheRequestedHost(t *testing.T) {
	spec := threeHosts()
	spec.Clusters[0].DRS = DRSSpec{Enabled: true, Behavior: "fullyAutomated"}
	b := start(t, spec)
	b.succeeds(b.vm("gpu1").PowerOff(b.ctx))
	there := b.host("esx3").Reference()
	on, err := methods.PowerOnVM_Task(b.ctx, b.client, &types.PowerOnVM_Task{This: b.vm("gpu1").Reference(), Host: &there})
	b.must(err)
	b.succeeds(object.NewTask(b.client.Client, on.Returnval), nil)
	b.want(*b.vmProperties("gpu1").Runtime.Host, there)
}

// levels is the number of nested causes of a fault.
func levels(fault types.BaseMethodFault) int {
	n := 0
	for cause := fault.GetMethodFault().FaultCause; cause != nil; cause = cause.Fault.GetMethodFault().FaultCause {
		n += 2
	}
	return n
}

func TestForeignTaskHasItsResult(t *testing.T) {
	b := start(t, twoHosts())
	var answer struct{ Task string }
	b.ctl("POST", "/hosts/esx1/task", map[string]any{"resultBytes": 3 << 20}, &answer)
	info := b.taskInfo(types.ManagedObjectReference{Type: "Task", Value: answer.Task})
	b.want(info.State, "success")
	b.want(info.EntityName, "esx1")
	b.want(len(info.Result.(string)), 3<<20)
	b.want(b.hostProperties("esx1").RecentTask[0].Value, answer.Task)
	b.ctl("POST", "/vms/gpu1/task", map[string]any{"resultLevels": 70, "durationMs": 10, "method": "CheckCompliance_Task"}, &answer)
	ref := types.ManagedObjectReference{Type: "Task", Value: answer.Task}
	b.succeeds(object.NewTask(b.client.Client, ref), nil)
	info = b.taskInfo(ref)
	b.want(info.Name, "CheckCompliance_Task")
	deep := info.Result.(types.SystemError)
	if n := levels(&deep); n < 70 {
		t.Fatalf("%d levels", n)
	}
	status, _ := b.tryCtl("POST", "/hosts/esx1/task", map[string]any{"resultBytes": 1, "resultLevels": 1}, nil)
	b.want(status, http.StatusBadRequest)
}

func TestRuleSetsALargeResultOfATask(t *testing.T) {
	b := start(t, twoHosts())
	b.ctl("POST", "/faults", map[string]any{"method": "PowerOffVM_Task", "kind": "taskResult", "resultBytes": 1000, "count": 1}, nil)
	off, err := b.vm("gpu1").PowerOff(b.ctx)
	b.succeeds(off, err)
	b.want(len(b.taskInfo(off.Reference()).Result.(string)), 1000)
	b.succeeds(b.vm("gpu1").PowerOn(b.ctx))
	off, err = b.vm("gpu1").PowerOff(b.ctx)
	b.succeeds(off, err)
	b.want(b.taskInfo(off.Reference()).Result, nil)
}

func (b *bench) askGuest() string {
	b.Helper()
	err := b.vm("gpu1").ShutdownGuest(b.ctx)
	switch {
	case err == nil:
		return ""
	case fault.Is(err, &types.ToolsUnavailable{}):
		return "ToolsUnavailable"
	case fault.Is(err, &types.TaskInProgress{}):
		return "TaskInProgress"
	}
	return err.Error()
}

func TestGuestRebootsInsteadOfStopping(t *testing.T) {
	spec := twoHosts()
	spec.VMs[0].Reboots = true
	b := start(t, spec)
	b.want(b.askGuest(), "")
	s := b.until("gpu1 has booted again", func(s State) bool { return s.vm("gpu1").Boots == 2 })
	b.want(s.vm("gpu1").Power, "poweredOn")
	b.want(b.vmProperties("gpu1").Guest.ToolsRunningStatus, "guestToolsRunning")
	b.ctl("PATCH", "/vms/gpu1", map[string]any{"reboots": false}, nil)
	b.want(b.askGuest(), "")
	b.until("gpu1 is off", func(s State) bool { return s.vm("gpu1").Power == "poweredOff" })
}

func TestToolsStopBeforeTheGuestDoes(t *testing.T) {
	spec := twoHosts()
	spec.VMs[0].ShutdownMs, spec.VMs[0].ToolsStopMs = 60000, 1
	b := start(t, spec)
	b.want(b.askGuest(), "")
	for end := time.Now().Add(deadline); b.vmProperties("gpu1").Guest.ToolsRunningStatus != "guestToolsNotRunning"; {
		if time.Now().After(end) {
			t.Fatal("VMware Tools still run")
		}
	}
	b.want(b.vmProperties("gpu1").Runtime.PowerState, "poweredOn")
	b.want(b.askGuest(), "ToolsUnavailable")
	b.succeeds(b.vm("gpu1").PowerOff(b.ctx))
	b.succeeds(b.vm("gpu1").PowerOn(b.ctx))
	b.want(b.vmProperties("gpu1").Guest.ToolsRunningStatus, "guestToolsRunning")
}

func TestVMPowersOffAfterEachPowerOn(t *testing.T) {
	b := start(t, twoHosts())
	b.ctl("PATCH", "/vms/gpu1", map[string]any{"diesAfterMs": 10}, nil)
	b.succeeds(b.vm("gpu1").PowerOff(b.ctx))
	for boots := 2; boots < 4; boots++ {
		b.succeeds(b.vm("gpu1").PowerOn(b.ctx))
		s := b.until("gpu1 died", func(s State) bool { return s.vm("gpu1").Power == "poweredOff" })
		b.want(s.vm("gpu1").Boots, boots)
	}
	journal := b.journal()
	last := journal[len(journal)-1]
	b.want(last.Detail+" "+last.Cause+" "+last.User, "poweredOff died guest")
	b.want(len(b.vmProperties("gpu1").RecentTask), 3)
}

func TestEnterFailsWithAFault(t *testing.T) {
	b := start(t, twoHosts())
	status, _ := b.tryCtl("POST", "/hosts/esx1/fail", nil, nil)
	b.want(status, http.StatusConflict)
	enter, err := b.host("esx1").EnterMaintenanceMode(b.ctx, 0, false, nil)
	b.must(err)
	status, _ = b.tryCtl("POST", "/hosts/esx1/fail", map[string]any{"fault": "NoSuchFault"}, nil)
	b.want(status, http.StatusBadRequest)
	b.ctl("POST", "/hosts/esx1/fail", map[string]any{"fault": "VsanFault"}, nil)
	info := b.taskInfo(enter.Reference())
	b.want(info.State, "error")
	b.want(info.Cancelled, false)
	b.want(fmt.Sprintf("%T", info.Error.Fault), "*types.VsanFault")
	b.want(b.until("esx1 stays in service", func(State) bool { return true }).host("esx1").Entering, (*EnteringState)(nil))
	again, err := b.host("esx1").EnterMaintenanceMode(b.ctx, 0, false, nil)
	b.must(err)
	b.want(b.taskInfo(again.Reference()).State, "running")
}

// watcher is a property collector with one filter, of the implementation under
// test.
type watcher struct {
	*bench
	self    types.ManagedObjectReference
	version string
}

func (b *bench) collect(spec types.PropertyFilterSpec) *watcher {
	b.Helper()
	made, err := methods.CreatePropertyCollector(b.ctx, b.client, &types.CreatePropertyCollector{This: b.client.ServiceContent.PropertyCollector})
	b.must(err)
	_, err = methods.CreateFilter(b.ctx, b.client, &types.CreateFilter{This: made.Returnval, Spec: spec})
	b.must(err)
	return &watcher{bench: b, self: made.Returnval}
}

// changes waits up to a second for the next set, and returns its changes.
func (c *watcher) changes() []types.PropertyChange {
	c.Helper()
	res, err := methods.WaitForUpdatesEx(c.ctx, c.client, &types.WaitForUpdatesEx{
		This: c.self, Version: c.version, Options: &types.WaitOptions{MaxWaitSeconds: types.NewInt32(1)},
	})
	c.must(err)
	if res.Returnval == nil {
		return nil
	}
	c.version = res.Returnval.Version
	var all []types.PropertyChange
	for _, f := range res.Returnval.FilterSet {
		for _, o := range f.ObjectSet {
			all = append(all, o.ChangeSet...)
		}
	}
	return all
}

// states is a page of a history as one line, newest first.
func states(changes []types.PropertyChange) string {
	line := ""
	for _, c := range changes {
		for _, info := range c.Val.(types.ArrayOfTaskInfo).TaskInfo {
			line += fmt.Sprint(info.EntityName, "=", info.State, " ")
		}
	}
	return line
}

func (b *bench) history() *watcher {
	b.Helper()
	made, err := methods.CreateCollectorForTasks(b.ctx, b.client, &types.CreateCollectorForTasks{
		This: *b.client.ServiceContent.TaskManager,
		Filter: types.TaskFilterSpec{Entity: &types.TaskFilterSpecByEntity{
			Entity: b.client.ServiceContent.RootFolder, Recursion: types.TaskFilterSpecRecursionOptionAll,
		}},
	})
	b.must(err)
	return b.collect(types.PropertyFilterSpec{
		PropSet:   []types.PropertySpec{{Type: "TaskHistoryCollector", PathSet: []string{"latestPage"}}},
		ObjectSet: []types.ObjectSpec{{Obj: made.Returnval}},
	})
}

func TestHistoryReportsNewTasksOnly(t *testing.T) {
	b := start(t, twoHosts())
	b.ctl("PATCH", "/settings", map[string]any{"pushTaskEnd": false}, nil)
	h := b.history()
	h.changes()
	b.ctl("POST", "/hosts/esx1/enter", nil, nil)
	b.want(states(h.changes()), "esx1=running ")
	b.ctl("POST", "/hosts/esx1/cancel", nil, nil)
	b.want(states(h.changes()), "")
	// The update of the next task contains the current page.
	b.ctl("POST", "/hosts/esx2/task", map[string]any{"durationMs": 60000}, nil)
	b.want(states(h.changes()), "esx2=running esx1=error ")
	b.ctl("PATCH", "/settings", map[string]any{"pushTaskEnd": true}, nil)
	b.ctl("POST", "/hosts/esx1/enter", nil, nil)
	b.want(states(h.changes()), "esx1=running esx2=running esx1=error ")
	b.ctl("POST", "/hosts/esx1/cancel", nil, nil)
	b.want(states(h.changes()), "esx1=error esx2=running esx1=error ")
}

func TestMemberOfAListViewReportsItsEnd(t *testing.T) {
	spec := twoHosts()
	spec.PushRecentTask, spec.PushTaskEnd = new(bool), new(bool)
	b := start(t, spec)
	list, err := methods.CreateListView(b.ctx, b.client, &types.CreateListView{
		This: *b.client.ServiceContent.ViewManager, Obj: []types.ManagedObjectReference{b.vm("gpu1").Reference()},
	})
	b.must(err)
	c := b.collect(types.PropertyFilterSpec{
		PropSet: []types.PropertySpec{
			{Type: "Task", PathSet: []string{"info.state"}},
			{Type: "VirtualMachine", PathSet: []string{"name"}},
		},
		ObjectSet: []types.ObjectSpec{{Obj: list.Returnval, Skip: types.NewBool(true), SelectSet: []types.BaseSelectionSpec{
			&types.TraversalSpec{Type: "ListView", Path: "view", SelectSet: []types.BaseSelectionSpec{
				&types.TraversalSpec{Type: "VirtualMachine", Path: "recentTask"},
			}},
		}}},
	})
	c.changes()
	enter, err := b.host("esx1").EnterMaintenanceMode(b.ctx, 0, false, nil)
	b.must(err)
	_, err = methods.ModifyListView(b.ctx, b.client, &types.ModifyListView{This: list.Returnval, Add: []types.ManagedObjectReference{enter.Reference()}})
	b.must(err)
	until := func(want string) {
		t.Helper()
		for end := time.Now().Add(deadline); time.Now().Before(end); {
			for _, change := range c.changes() {
				if fmt.Sprint(change.Name, "=", change.Val) == want {
					return
				}
			}
		}
		t.Fatalf("%s was not reported", want)
	}
	until("info.state=running")
	b.ctl("POST", "/hosts/esx1/cancel", nil, nil)
	until("info.state=error")
}

// read is what a client reads of gpu1: the names of its properties, and of
// those that are missing, each with its fault.
func (b *bench) read(paths ...string) (set, lacking []string) {
	b.Helper()
	res, err := methods.RetrievePropertiesEx(b.ctx, b.client, &types.RetrievePropertiesEx{
		This: b.client.ServiceContent.PropertyCollector,
		SpecSet: []types.PropertyFilterSpec{{
			PropSet:   []types.PropertySpec{{Type: "VirtualMachine", PathSet: paths}},
			ObjectSet: []types.ObjectSpec{{Obj: b.vm("gpu1").Reference()}},
		}},
	})
	b.must(err)
	for _, p := range res.Returnval.Objects[0].PropSet {
		set = append(set, p.Name)
	}
	for _, m := range res.Returnval.Objects[0].MissingSet {
		lacking = append(lacking, m.Path+strings.TrimPrefix(fmt.Sprintf(" %T", m.Fault.Fault), " *types"))
	}
	return set, lacking
}

func TestUnreadableVM(t *testing.T) {
	b := start(t, twoHosts())
	paths := []string{"name", "config.hardware.device", "config.uuid", "runtime.powerState"}
	set, lacking := b.read(paths...)
	b.want(set, paths)
	b.want(lacking, []string{})
	b.ctl("PATCH", "/vms/gpu1", map[string]any{"readable": "noConfig"}, nil)
	set, lacking = b.read(paths...)
	b.want(set, []string{"name", "runtime.powerState"})
	b.want(lacking, []string{})
	b.want(b.vmProperties("gpu1").Runtime.ConnectionState, "inaccessible")
	w := b.collect(types.PropertyFilterSpec{
		PropSet:   []types.PropertySpec{{Type: "VirtualMachine", PathSet: []string{"name", "config.uuid"}}},
		ObjectSet: []types.ObjectSpec{{Obj: b.vm("gpu1").Reference()}},
	})
	seen := map[string]any{}
	for _, c := range w.changes() {
		if c.Val != nil {
			seen[c.Name] = c.Val
		}
	}
	b.want(seen, map[string]any{"name": "gpu1"})
	b.ctl("PATCH", "/vms/gpu1", map[string]any{"readable": "denied"}, nil)
	set, lacking = b.read("name", "config.uuid")
	b.want(set, []string{})
	b.want(lacking, []string{"name.NoPermission", "config.uuid.NoPermission"})
	// The simulator still performs calls for it.
	b.succeeds(b.vm("gpu1").PowerOff(b.ctx))
	b.ctl("PATCH", "/vms/gpu1", map[string]any{"readable": "all"}, nil)
	set, _ = b.read(paths...)
	b.want(set, paths)
	status, _ := b.tryCtl("PATCH", "/vms/gpu1", map[string]any{"readable": "some"}, nil)
	b.want(status, http.StatusBadRequest)
	b.ctl("POST", "/vms", map[string]any{"name": "orphan", "host": "esx2", "poweredOn": true, "readable": "noConfig"}, nil)
	b.want(b.vmProperties("orphan").Config == nil, true)
}

func TestDRSDoesNotPreferTheCurrentHost(t *testing.T) {
	spec := threeHosts()
	spec.Clusters[0].DRS = DRSSpec{Enabled: true, Behavior: "partiallyAutomated"}
	spec.VMs[0].Host = "esx3"
	b := start(t, spec)
	cycle := func() string {
		t.Helper()
		b.succeeds(b.vm("gpu1").PowerOff(b.ctx))
		b.succeeds(b.vm("gpu1").PowerOn(b.ctx))
		return b.until("", func(State) bool { return true }).vm("gpu1").Host
	}
	b.want(cycle(), "esx3")
	b.ctl("PATCH", "/settings", map[string]any{"drsKeepsHost": false}, nil)
	b.want(cycle(), "esx1")
}

func TestDynamicDeviceHasTheLabelAndSubsystem(t *testing.T) {
	spec := twoHosts()
	labelled := gpu("0000:3b:00.0", 0x2235)
	labelled.Label, labelled.SubVendor, labelled.SubDevice = "pool-a", 0x10de, 0x145a
	spec.Clusters[0].Hosts[0].Devices = []DeviceSpec{labelled}
	spec.VMs[0].PoweredOn = false
	other := func(name string, change func(*GPUSpec)) {
		vm := VMSpec{Name: name, Host: "esx1", GPU: spec.VMs[0].GPU}
		change(&vm.GPU)
		spec.VMs = append(spec.VMs, vm)
	}
	other("label", func(g *GPUSpec) { g.Label = "pool-b" })
	other("subsystem", func(g *GPUSpec) { g.SubDevice = 0x145b })
	other("same", func(g *GPUSpec) { g.Label, g.SubVendor, g.SubDevice = "pool-a", 0x10de, 0x145a })
	b := start(t, spec)
	b.want(b.fails(b.vm("label").PowerOn(b.ctx)), "InsufficientResourcesFault")
	b.want(b.fails(b.vm("subsystem").PowerOn(b.ctx)), "InsufficientResourcesFault")
	b.succeeds(b.vm("same").PowerOn(b.ctx))
	h := b.hostProperties("esx1")
	b.want(h.Config.PciPassthruInfo[0].GetHostPciPassthruInfo().HardwareLabel, "pool-a")
	b.want(h.Hardware.PciDevice[len(h.Hardware.PciDevice)-1].SubDeviceId, 0x145a)
}

func TestMarkedVMIsShutDownAtTheClickAndStartedElsewhere(t *testing.T) {
	spec := twoHosts()
	spec.Delays.RemediationMs = 300
	spec.VMs[0].ExtraConfig = map[string]string{evacuationMark: "TRUE"}
	b := start(t, spec)
	b.ctl("POST", "/hosts/esx1/enter", nil, nil)
	b.until("the VM is off", func(s State) bool { return s.VMs[0].Power == "poweredOff" })
	s := b.until("the VM is on again", func(s State) bool { return s.VMs[0].Power == "poweredOn" })
	if s.VMs[0].Host != "esx2" || s.VMs[0].Boots != 2 {
		t.Fatalf("%+v", s.VMs[0])
	}
	b.until("esx1 is in maintenance", func(s State) bool { return s.Hosts[0].InMaintenance })
}

func TestMarkHasNoEffectWithoutTheCycle(t *testing.T) {
	spec := twoHosts()
	spec.VMs[0].ExtraConfig = map[string]string{evacuationMark: "TRUE"}
	b := start(t, spec)
	b.ctl("POST", "/hosts/esx1/enter", nil, nil)
	b.ctl("POST", "/vms/gpu1/shutdown", nil, nil)
	b.until("esx1 is in maintenance", func(s State) bool { return s.Hosts[0].InMaintenance })
	s := b.until("the state", func(State) bool { return true })
	if s.VMs[0].Power != "poweredOff" || s.VMs[0].Host != "esx1" {
		t.Fatalf("%+v", s.VMs[0])
	}
}

func TestGuestOfItsOwnShutsDownUntilItSaysThatItHasEnded(t *testing.T) {
	spec := twoHosts()
	spec.VMs[0].OwnGuest = true
	b := start(t, spec)
	b.ctl("POST", "/vms/gpu1/shutdown", nil, nil)
	s := b.until("the guest shuts down", func(s State) bool { return s.VMs[0].ShuttingDown })
	boots := s.VMs[0].Boots
	b.ctl("POST", "/vms/gpu1/ended", map[string]int{"boots": boots - 1}, nil)
	if s = b.until("the state", func(State) bool { return true }); s.VMs[0].Power != "poweredOn" {
		t.Fatalf("another boot has ended, and it is off: %+v", s.VMs[0])
	}
	b.ctl("POST", "/vms/gpu1/ended", map[string]int{"boots": boots}, nil)
	b.until("the VM is off", func(s State) bool { return s.VMs[0].Power == "poweredOff" && !s.VMs[0].ShuttingDown })
}

func TestHostReportsAPartialMaintenanceMode(t *testing.T) {
	b := start(t, twoHosts())
	mode := map[string]string{"mode": "quickPatchPartialMM", "status": "enteringPartialMM"}
	b.ctl("POST", "/hosts/esx1/partial", mode, nil)
	var h mo.HostSystem
	esx1 := b.until("the hosts", func(State) bool { return true }).Hosts[0]
	pc := property.DefaultCollector(b.client.Client)
	b.must(pc.RetrieveOne(b.ctx, types.ManagedObjectReference{Type: "HostSystem", Value: esx1.Ref}, []string{"runtime.partialMaintenanceMode"}, &h))
	if modes := h.Runtime.PartialMaintenanceMode; len(modes) != 1 || modes[0].Key != mode["mode"] || modes[0].HostStatus != mode["status"] {
		t.Fatalf("%+v", modes)
	}
	mode["status"] = "leaving"
	if status, text := b.tryCtl("POST", "/hosts/esx1/partial", mode, nil); status != http.StatusBadRequest {
		t.Fatalf("%d %s", status, text)
	}
}

func TestStandbyTaskHasTheDescriptionIdOfAVCenter(t *testing.T) {
	b := start(t, twoHosts())
	var answer struct{ Task string }
	b.ctl("POST", "/hosts/esx1/task", map[string]any{"method": "PowerDownHostToStandBy_Task", "durationMs": 10}, &answer)
	var found mo.Task
	pc := property.DefaultCollector(b.client.Client)
	b.must(pc.RetrieveOne(b.ctx, types.ManagedObjectReference{Type: "Task", Value: answer.Task}, []string{"info"}, &found))
	if found.Info.DescriptionId != "HostSystem.enterStandbyMode" {
		t.Fatal(found.Info.DescriptionId)
	}
}

func TestVMOnNoHostCanOnlyBeRelocated(t *testing.T) {
	b := start(t, twoHosts())
	if status, text := b.tryCtl("POST", "/vms/gpu1/move", map[string]string{"host": ""}, nil); status != http.StatusBadRequest {
		t.Fatalf("a running VM: %d %s", status, text)
	}
	b.ctl("POST", "/vms/gpu1/off", nil, nil)
	b.until("the VM is off", func(s State) bool { return s.VMs[0].Power == "poweredOff" })
	b.ctl("POST", "/vms/gpu1/move", map[string]string{"host": ""}, nil)
	s := b.until("it is on no host", func(s State) bool { return s.VMs[0].Host == "" })
	vm := object.NewVirtualMachine(b.client.Client, types.ManagedObjectReference{Type: "VirtualMachine", Value: s.VMs[0].Ref})
	on, err := vm.PowerOn(b.ctx)
	b.must(err)
	if err := on.Wait(b.ctx); !fault.Is(err, &types.HostNotConnected{}) {
		t.Fatalf("power on: %v", err)
	}
	esx2 := types.ManagedObjectReference{Type: "HostSystem", Value: s.Hosts[1].Ref}
	moved, err := vm.Relocate(b.ctx, types.VirtualMachineRelocateSpec{Host: &esx2}, types.VirtualMachineMovePriorityDefaultPriority)
	b.must(err)
	b.must(moved.Wait(b.ctx))
	b.until("it is on esx2", func(s State) bool { return s.VMs[0].Host == "esx2" })
}
