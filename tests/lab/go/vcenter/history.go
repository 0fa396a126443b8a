package main

import (
	"slices"
	"sync"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	vim "github.com/vmware/govmomi/vim25/types"
)

const (
	// kept is how many tasks a vCenter remembers for those who ask later; here
	// it is also the largest page.
	kept = 1000
	// firstPage is the size of a page that nobody has set.
	firstPage = 10
	// maxHistories is how many task history collectors a vCenter has at once.
	maxHistories = 32
)

// TaskHistoryCollector is a task history of our own. The simulator's walks the
// whole inventory for each task, before the task's entity hears of it.
type TaskHistoryCollector struct {
	mo.TaskHistoryCollector

	mu   sync.Mutex
	size int
	// page holds the tasks that match, newest last.
	page []*simulator.Task
}

// CreateCollectorForTasks implements the SOAP method.
func (v *VCenter) CreateCollectorForTasks(ctx *simulator.Context, req *vim.CreateCollectorForTasks) soap.HasFault {
	cs := v.collectors
	h := &TaskHistoryCollector{size: firstPage}
	h.Filter = req.Filter
	ctx.Session.Put(h)
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if len(cs.histories) >= maxHistories {
		ctx.Session.Remove(ctx, h.Self)
		return &methods.CreateCollectorForTasksBody{Fault_: soapFault(&vim.InvalidState{})}
	}
	cs.histories[h] = true
	for _, task := range cs.tasks {
		if cs.matches(req.Filter, task) {
			h.push(task)
		}
	}
	return &methods.CreateCollectorForTasksBody{Res: &vim.CreateCollectorForTasksResponse{Returnval: h.Self}}
}

// record adds a task that has started.
func (cs *collectors) record(task *simulator.Task) {
	cs.mu.Lock()
	cs.tasks = append(cs.tasks, task)
	if len(cs.tasks) > kept {
		cs.tasks = slices.Delete(cs.tasks, 0, len(cs.tasks)-kept)
	}
	var of []ref
	for h := range cs.histories {
		if cs.matches(h.Filter.(vim.TaskFilterSpec), task) {
			h.push(task)
			of = append(of, h.Self)
		}
	}
	cs.mu.Unlock()
	cs.told(of)
}

// retell reports a task whose state has changed. A change of its progress alone
// is not reported, as in a vCenter.
func (cs *collectors) retell(task ref) {
	if !cs.v.suppression.pushesEnds() {
		return
	}
	cs.mu.Lock()
	var of []ref
	for h := range cs.histories {
		if h.has(task) {
			of = append(of, h.Self)
		}
	}
	cs.mu.Unlock()
	cs.told(of)
}

func (cs *collectors) told(of []ref) {
	for _, h := range of {
		cs.values.changed(h, []string{"latestPage"})
		cs.mark(h, []string{"latestPage"}, false)
	}
}

func (cs *collectors) close(h *TaskHistoryCollector) {
	cs.mu.Lock()
	delete(cs.histories, h)
	cs.mu.Unlock()
	cs.values.gone(h.Self)
}

// matches supports the entity and the states of a filter; the lab's clients use
// nothing else.
func (cs *collectors) matches(filter vim.TaskFilterSpec, task *simulator.Task) bool {
	if len(filter.State) > 0 && !slices.Contains(filter.State, task.Info.State) {
		return false
	}
	by, entity := filter.Entity, task.Info.Entity
	if by == nil || entity == nil {
		return by == nil
	}
	if *entity == by.Entity {
		return by.Recursion != vim.TaskFilterSpecRecursionOptionChildren
	}
	if by.Recursion == vim.TaskFilterSpecRecursionOptionSelf {
		return false
	}
	for at := entity; at != nil; {
		if *at == by.Entity {
			return true
		}
		e, ok := cs.v.reg.Get(*at).(mo.Entity)
		if !ok {
			return false
		}
		at = e.Entity().Parent
	}
	return false
}

func (h *TaskHistoryCollector) push(task *simulator.Task) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.page = append(h.page, task)
	if len(h.page) > kept {
		h.page = slices.Delete(h.page, 0, len(h.page)-kept)
	}
}

// shown returns the tasks of the latest page, newest first.
func (h *TaskHistoryCollector) shown() []*simulator.Task {
	h.mu.Lock()
	defer h.mu.Unlock()
	page := slices.Clone(h.page[max(0, len(h.page)-h.size):])
	slices.Reverse(page)
	return page
}

func (h *TaskHistoryCollector) latest() []ref {
	var list []ref
	for _, task := range h.shown() {
		list = append(list, task.Self)
	}
	return list
}

func (h *TaskHistoryCollector) has(task ref) bool { return slices.Contains(h.latest(), task) }

// Get is called by the simulator when it reads properties.
func (h *TaskHistoryCollector) Get() mo.Reference {
	seen := h.TaskHistoryCollector
	for _, task := range h.shown() {
		seen.LatestPage = append(seen.LatestPage, task.Info)
	}
	return &seen
}

// DestroyCollector implements the SOAP method.
func (v *VCenter) DestroyCollector(ctx *simulator.Context, req *vim.DestroyCollector) soap.HasFault {
	h, ok := ctx.Session.Get(req.This).(*TaskHistoryCollector)
	if !ok {
		return &methods.DestroyCollectorBody{Fault_: soapFault(&vim.ManagedObjectNotFound{Obj: req.This})}
	}
	v.collectors.close(h)
	ctx.Session.Remove(ctx, req.This)
	return &methods.DestroyCollectorBody{Res: &vim.DestroyCollectorResponse{}}
}

// SetCollectorPageSize implements the SOAP method.
func (h *TaskHistoryCollector) SetCollectorPageSize(_ *simulator.Context, req *vim.SetCollectorPageSize) soap.HasFault {
	if req.MaxCount <= 0 || req.MaxCount > kept {
		return &methods.SetCollectorPageSizeBody{Fault_: soapFault(&vim.InvalidArgument{InvalidProperty: "maxCount"})}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.size = int(req.MaxCount)
	return &methods.SetCollectorPageSizeBody{Res: &vim.SetCollectorPageSizeResponse{}}
}
