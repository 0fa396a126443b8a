package main

import (
	"maps"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// Readable is how much of a VM clients can read.
type Readable string

const (
	readAll Readable = "all"
	// readNoConfig is an inaccessible VM, such as one whose datastore is
	// gone: `config` is unset, without a fault.
	readNoConfig Readable = "noConfig"
	// readDenied is a VM on which the user has no System.Read: every property
	// comes back as missing with NoPermission.
	readDenied Readable = "denied"
	// readTaskDenied is a task for a user without System.Read at the root folder
	// (report: vmware/govmomi#1604).
	readTaskDenied Readable = "taskDenied"
)

func (r Readable) check() error {
	switch r {
	case "", readAll, readNoConfig, readDenied:
		return nil
	}
	return badRequest("readable %q: want %s, %s or %s", r, readAll, readNoConfig, readDenied)
}

// visibility hides VMs, or parts of them, from clients that read properties. Its
// mutex is a leaf lock.
type visibility struct {
	any   atomic.Bool
	tasks atomic.Bool
	mu    sync.Mutex
	vms   map[types.ManagedObjectReference]Readable
}

func newVisibility() *visibility {
	return &visibility{vms: map[types.ManagedObjectReference]Readable{}}
}

func (s *visibility) set(vm types.ManagedObjectReference, r Readable) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Readers may use the old map.
	vms := maps.Clone(s.vms)
	delete(vms, vm)
	if r != "" && r != readAll {
		vms[vm] = r
	}
	s.vms = vms
	s.any.Store(len(vms) > 0 || s.tasks.Load())
}

// withholdTasks withholds the properties of tasks from now on, or shows them.
func (s *visibility) withholdTasks(withheld bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tasks.Store(withheld)
	s.any.Store(len(s.vms) > 0 || withheld)
}

// of returns how much of an object is hidden; ok is false if nothing is.
func (s *visibility) of(obj types.ManagedObjectReference) (r Readable, ok bool) {
	if obj.Type == "Task" && s.tasks.Load() {
		return readTaskDenied, true
	}
	r, ok = s.all()[obj]
	return r, ok
}

func (s *visibility) all() map[types.ManagedObjectReference]Readable {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.vms
}

// over returns how one property is read: unset, or missing with this fault.
func (r Readable) over(obj types.ManagedObjectReference, path string) (unset bool, fault types.BaseMethodFault) {
	switch r {
	case readNoConfig:
		return path == "config" || strings.HasPrefix(path, "config."), nil
	case readDenied:
		return false, &types.NoPermission{Object: &obj, PrivilegeId: "System.Read"}
	case readTaskDenied:
		root := types.ManagedObjectReference{Type: "Folder", Value: "group-d1"}
		return false, &types.NoPermission{Object: &root, PrivilegeId: "System.Read"}
	}
	return false, nil
}

// setReadable changes how much of a VM can be read, and notifies the collectors.
func (v *VCenter) setReadable(g *guest, r Readable) {
	v.visibility.set(g.Self, r)
	state := types.VirtualMachineConnectionStateConnected
	if r == readNoConfig {
		state = types.VirtualMachineConnectionStateInaccessible
	}
	if v.collectors != nil {
		v.collectors.values.changed(g.Self, nil)
		v.collectors.mark(g.Self, nil, false)
	}
	v.set(g.VirtualMachine, "runtime.connectionState", state, "summary.runtime.connectionState", state)
}

// RetrievePropertiesEx implements the SOAP method where a VM is hidden.
func (v *VCenter) RetrievePropertiesEx(ctx *simulator.Context, req *types.RetrievePropertiesEx) soap.HasFault {
	pc, ok := ctx.Session.Get(req.This).(*simulator.PropertyCollector)
	if !ok {
		return &methods.RetrievePropertiesExBody{Fault_: soapFault(&types.ManagedObjectNotFound{Obj: req.This})}
	}
	body := pc.RetrievePropertiesEx(ctx, req)
	if b, ok := body.(*methods.RetrievePropertiesExBody); ok && b.Res != nil && b.Res.Returnval != nil {
		v.hideContents(b.Res.Returnval.Objects)
	}
	return body
}

// ContinueRetrievePropertiesEx implements the SOAP method where a VM
// is hidden.
func (v *VCenter) ContinueRetrievePropertiesEx(ctx *simulator.Context, req *types.ContinueRetrievePropertiesEx) soap.HasFault {
	pc, ok := ctx.Session.Get(req.This).(*simulator.PropertyCollector)
	if !ok {
		return &methods.ContinueRetrievePropertiesExBody{Fault_: soapFault(&types.ManagedObjectNotFound{Obj: req.This})}
	}
	body := pc.ContinueRetrievePropertiesEx(ctx, req)
	if b, ok := body.(*methods.ContinueRetrievePropertiesExBody); ok && b.Res != nil {
		v.hideContents(b.Res.Returnval.Objects)
	}
	return body
}

func (v *VCenter) hideContents(objects []types.ObjectContent) {
	for i := range objects {
		o := &objects[i]
		r, ok := v.visibility.of(o.Obj)
		if !ok {
			continue
		}
		var kept []types.DynamicProperty
		for _, p := range o.PropSet {
			unset, fault := r.over(o.Obj, p.Name)
			switch {
			case fault != nil:
				o.MissingSet = append(o.MissingSet, missing(p.Name, fault))
			case !unset:
				kept = append(kept, p)
			}
		}
		o.PropSet = kept
	}
}

// hideUpdates filters the updates of the simulator's collector.
func (v *VCenter) hideUpdates(set *types.UpdateSet) {
	for i := range set.FilterSet {
		for j := range set.FilterSet[i].ObjectSet {
			o := &set.FilterSet[i].ObjectSet[j]
			r, ok := v.visibility.of(o.Obj)
			if !ok {
				continue
			}
			var kept []types.PropertyChange
			for _, c := range o.ChangeSet {
				unset, fault := r.over(o.Obj, c.Name)
				switch {
				case fault != nil:
					o.MissingSet = append(o.MissingSet, missing(c.Name, fault))
				case !unset:
					kept = append(kept, c)
				}
			}
			o.ChangeSet = kept
		}
	}
}

func missing(path string, fault types.BaseMethodFault) types.MissingProperty {
	return types.MissingProperty{Path: path, Fault: types.LocalizedMethodFault{Fault: fault, LocalizedMessage: message(fault)}}
}

// hiddenCell returns the hidden form of a property for our own collectors; ok is
// false if it is not hidden.
func (s *visibility) hiddenCell(obj types.ManagedObjectReference, path string) (c cell, ok bool) {
	if !s.any.Load() {
		return cell{}, false
	}
	r, ok := s.of(obj)
	if !ok {
		return cell{}, false
	}
	unset, fault := r.over(obj, path)
	switch {
	case fault != nil:
		return cell{state: cellMissing, xml: element("missingSet", missing(path, fault))}, true
	case unset:
		return cell{state: cellUnset, xml: element("changeSet", types.PropertyChange{Name: path, Op: types.PropertyChangeOpAssign})}, true
	}
	return cell{}, false
}
