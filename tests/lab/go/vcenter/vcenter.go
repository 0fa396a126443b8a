package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"
)

// VCenter is the simulator with the behaviour that it lacks.
//
// One mutex guards all that this program adds and every write to the host and
// VM properties that it changes. It is taken before the simulator's locks of
// objects and never while one is held, so the two cannot deadlock.
type VCenter struct {
	mu    sync.Mutex
	model *simulator.Model
	reg   *simulator.Registry
	// ctx is used for updates without a request of a client.
	ctx *simulator.Context
	dc  *simulator.Datacenter

	spec     *Spec
	hosts    map[types.ManagedObjectReference]*host
	guests   map[types.ManagedObjectReference]*guest
	entering map[types.ManagedObjectReference]*entering
	// alone holds the hosts that are entering without a task of the vCenter.
	alone map[types.ManagedObjectReference]*host
	// busy are the VMs with a running task, and what that task reserves.
	busy map[types.ManagedObjectReference]*busy

	taskCount int
	closed    bool

	// rev counts changes of the state document; changed is closed and replaced
	// at each change, which long polls wait for.
	rev     int64
	changed chan struct{}

	journal     *Journal
	faults      *Faults
	sessions    *Sessions
	traffic     *Traffic
	suppression *suppression
	stale       staleRows
	visibility  *visibility
	withheld    []Withheld
	// collectors is nil if the simulator's own are used.
	collectors *collectors
	bulk       bulk
}

// host is the state of a host beyond its managed object.
type host struct {
	*simulator.HostSystem
	devices []DeviceSpec
	// vgpus is how many GPUs it shares among VMs, profiles what it offers of
	// them.
	vgpus    int
	profiles []string
	// hardware is the newest hardware version that it runs, 0 for the default.
	hardware int
}

// guest is the state of a VM beyond its managed object.
type guest struct {
	*simulator.VirtualMachine
	spec VMSpec
	// device is the address of the running VM's device, empty while it is off.
	device string
	// image is the datastore of the image in its drive.
	image *types.ManagedObjectReference
	// boots counts starts, so that an off and on between two reads is noticed.
	boots int
	// shutdown is the timer of a guest shutdown.
	shutdown *time.Timer
	// shutsDown is who asked for it.
	shutsDown caller
}

// inBoot runs f with the mutex held, after a delay, if the VM is still in the
// same boot.
func (v *VCenter) inBoot(g *guest, ms int, f func()) *time.Timer {
	boot := g.boots
	return time.AfterFunc(time.Duration(ms)*time.Millisecond, func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		if !v.closed && v.guests[g.Self] == g && g.boots == boot && v.on(g) {
			f()
		}
	})
}

// busy is a task that reserves a VM.
type busy struct {
	task types.ManagedObjectReference
	// target is the host that the task is about to put the VM on, if any.
	target *types.ManagedObjectReference
	// device is the address that the VM is about to get there.
	device string
}

// caller is the user of a session, or a person at the control endpoint.
type caller struct {
	User    string
	Session string
}

func callerOf(ctx *simulator.Context) caller {
	if ctx.Session == nil {
		return caller{}
	}
	return caller{User: ctx.Session.UserName, Session: ctx.Session.Key}
}

// overrides receives the calls that are implemented here and not in the
// simulator. It is in the registry under its own reference; the hook before
// dispatch directs a call to it, and the original object can still be read in
// `This` of the call. The simulator asserts its own concrete types in many
// places, so replacing its objects by wrappers would crash it.
type overrides struct {
	mo.OverheadMemoryManager
	noLock
	*VCenter
}

// noLock disables the simulator's lock per object: several calls run at a time,
// and VCenter has a mutex.
type noLock struct{}

func (noLock) Lock()   {}
func (noLock) Unlock() {}

var overridesRef = types.ManagedObjectReference{Type: "OverheadMemoryManager", Value: "haulout-lab"}

// overridden lists the calls that are implemented here.
var overridden = map[string]bool{
	"HostSystem.EnterMaintenanceMode_Task": true,
	"HostSystem.ExitMaintenanceMode_Task":  true,
	"HostSystem.DisconnectHost_Task":       true,
	"HostSystem.ReconnectHost_Task":        true,
	"VirtualMachine.PowerOnVM_Task":        true,
	"VirtualMachine.PowerOffVM_Task":       true,
	"VirtualMachine.ResetVM_Task":          true,
	"VirtualMachine.ShutdownGuest":         true,
	"VirtualMachine.RelocateVM_Task":       true,
	"VirtualMachine.ReconfigVM_Task":       true,
	"Datacenter.PowerOnMultiVM_Task":       true,
	"Task.CancelTask":                      true,
	"EnvironmentBrowser.QueryConfigTarget": true,
	"PropertyCollector.WaitForUpdatesEx":   true,
	"SessionManager.Login":                 true,
	"SessionManager.Logout":                true,
	"EventManager.LogUserEvent":            true,
	"CustomFieldsManager.SetField":         true,

	"VirtualMachineProvisioningChecker.CheckRelocate_Task": true,

	"AuthorizationManager.HasPrivilegeOnEntities":    true,
	"EnvironmentBrowser.QueryConfigOptionDescriptor": true,
}

// overriddenToo lists the calls that are implemented here if our own collectors
// are used. Their objects may be in a session.
var overriddenToo = map[string]bool{
	"PropertyCollector.CreateFilter":        true,
	"PropertyFilter.DestroyPropertyFilter":  true,
	"TaskManager.CreateCollectorForTasks":   true,
	"TaskHistoryCollector.DestroyCollector": true,
}

// cancelUpdates ends the wait of a collector of either kind.
func (v *VCenter) cancelUpdates(pc *simulator.PropertyCollector) {
	if v.collectors != nil {
		v.collectors.cancel(pc)
	}
	pc.CancelWaitForUpdates(&types.CancelWaitForUpdates{This: pc.Self})
}

// before runs ahead of each call's dispatch.
func (v *VCenter) before(ctx *simulator.Context, method *simulator.Method) (mo.Reference, types.BaseMethodFault) {
	v.sessions.seen(ctx)
	if ctx.Session != nil && changesSomething(method.Name) {
		v.recordCall(callerOf(ctx), method)
	}
	name := method.This.Type + "." + method.Name
	ours := overridden[name] && v.reg.Get(method.This) != nil || method.Name == "WaitForUpdatesEx" ||
		name == "SearchIndex.FindAllByUuid" && v.bulk.byUUID != nil ||
		ctx.Session != nil && v.visibility.any.Load() && (name == "PropertyCollector.RetrievePropertiesEx" || name == "PropertyCollector.ContinueRetrievePropertiesEx")
	if v.collectors != nil && ctx.Session != nil {
		if pc, ok := ctx.Session.Get(method.This).(*simulator.PropertyCollector); ok {
			switch method.Name {
			case "CancelWaitForUpdates":
				v.collectors.cancel(pc)
			case "DestroyPropertyCollector":
				v.collectors.drop(pc, false)
			}
		}
		ours = ours || overriddenToo[name] && ctx.Session.Get(method.This) != nil
	}
	if ours {
		method.This = overridesRef
		// For a call without a session, the returned object is used; for one
		// with a session, the reference.
		return v.reg.Get(overridesRef), nil
	}
	return nil, nil
}

func newVCenter(spec *Spec) (*VCenter, error) {
	v := &VCenter{
		spec:     spec,
		hosts:    map[types.ManagedObjectReference]*host{},
		guests:   map[types.ManagedObjectReference]*guest{},
		entering: map[types.ManagedObjectReference]*entering{},
		alone:    map[types.ManagedObjectReference]*host{},
		busy:     map[types.ManagedObjectReference]*busy{},
		changed:  make(chan struct{}),
		journal:  newJournal(),
		rev:      1,
	}
	v.faults = newFaults(v)
	v.sessions = newSessions(v)
	v.traffic = newTraffic()
	v.suppression = newSuppression(v)
	v.visibility = newVisibility()
	if err := v.build(); err != nil {
		v.close()
		return nil, err
	}
	if spec.OwnCollectors {
		v.collectors = newCollectors(v)
		v.reg.AddHandler(v.collectors)
	}
	v.reg.Put(&overrides{OverheadMemoryManager: mo.OverheadMemoryManager{Self: overridesRef}, VCenter: v})
	v.reg.Handler = v.before
	return v, nil
}

// close removes the temporary directory of the simulated datastores.
func (v *VCenter) close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return
	}
	v.closed = true
	if v.model != nil && v.model.Service != nil {
		v.model.Remove()
	}
	if dir := v.datastoreDir(); dir != "" {
		_ = os.RemoveAll(dir)
	}
}

// fresh is a context for one piece of work of our own. The simulator's locks
// are shared within one context, so each goroutine needs its own.
func (v *VCenter) fresh() *simulator.Context {
	return &simulator.Context{Context: context.Background(), Session: v.ctx.Session, Map: v.reg}
}

// set updates properties and notifies every property collector. The pairs are
// path and value.
func (v *VCenter) set(obj mo.Reference, pairs ...any) {
	var changes []types.PropertyChange
	for i := 0; i < len(pairs); i += 2 {
		changes = append(changes, types.PropertyChange{Name: pairs[i].(string), Val: pairs[i+1]})
	}
	v.reg.AtomicUpdate(v.fresh(), obj, changes)
}

// bump wakes all requests that wait for a change of the state document.
func (v *VCenter) bump() {
	v.rev++
	close(v.changed)
	v.changed = make(chan struct{})
}

// settle applies what a change has made possible: it is called with the mutex
// held after each change.
func (v *VCenter) settle() {
	v.bump()
	v.settleMaintenance()
}

func (v *VCenter) hostOf(g *guest) *host {
	if g.Runtime.Host == nil {
		return nil
	}
	return v.hosts[*g.Runtime.Host]
}

func (v *VCenter) on(g *guest) bool {
	return g.Runtime.PowerState == types.VirtualMachinePowerStatePoweredOn
}

func (v *VCenter) connected(h *host) bool {
	return h.Runtime.ConnectionState == types.HostSystemConnectionStateConnected
}

// leaving is true from the request to enter maintenance mode until the host has
// left it, or the task has failed.
func (v *VCenter) leaving(h *host) bool {
	return h.Runtime.InMaintenanceMode || v.entering[h.Self] != nil || v.alone[h.Self] != nil
}

var errUnknown = errors.New("not in the inventory")

// findHost accepts a name or a moref.
func (v *VCenter) findHost(key string) (*host, error) {
	for ref, h := range v.hosts {
		if ref.Value == key || h.Name == key {
			return h, nil
		}
	}
	return nil, fmt.Errorf("host %q: %w", key, errUnknown)
}

// findVM accepts a moref, a UUID, or a name that only one VM has.
func (v *VCenter) findVM(key string) (*guest, error) {
	var found []*guest
	for ref, g := range v.guests {
		if ref.Value == key || strings.EqualFold(g.Config.Uuid, key) || g.Name == key {
			found = append(found, g)
		}
	}
	switch len(found) {
	case 0:
		return nil, fmt.Errorf("VM %q: %w", key, errUnknown)
	case 1:
		return found[0], nil
	}
	return nil, fmt.Errorf("VM %q: %d VMs match; use the moref", key, len(found))
}

// nameOf is an object's name for the journal and for error messages.
func (v *VCenter) nameOf(ref types.ManagedObjectReference) string {
	switch o := v.reg.Get(ref).(type) {
	case *simulator.HostSystem:
		return o.Name
	case *simulator.VirtualMachine:
		return o.Name
	case *simulator.Datacenter:
		return o.Name
	case *simulator.ClusterComputeResource:
		return o.Name
	}
	return ref.Value
}

// isNil detects the typed nil pointers that fault interfaces may contain.
func isNil(x any) bool {
	return x == nil || reflect.ValueOf(x).Kind() == reflect.Pointer && reflect.ValueOf(x).IsNil()
}
