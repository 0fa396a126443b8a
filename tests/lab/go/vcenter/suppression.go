package main

import (
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// suppression keeps `recentTask` out of WaitForUpdatesEx while it is on. The API
// has allowed this since 5.0: only a first read, or a plain read, is current.
// ListViews and TaskHistoryCollectors are not affected. A separate switch keeps the
// later states of tasks out of TaskHistoryCollectors.
type suppression struct {
	v  *VCenter
	mu sync.Mutex
	on bool
	// ends is true if histories push the later states of tasks.
	ends bool
	// last is the number of the newest task.
	last  int
	reads map[types.ManagedObjectReference]*firstRead
}

// firstRead is what a collector has sent to its client.
type firstRead struct {
	// mark is the number of the newest task before the first read.
	mark int
	// sent holds the objects that it has reported as entered. The simulator enters
	// all objects of a filter again when the root of its traversal changes.
	sent map[types.ManagedObjectReference]bool
	// newest is the number of the newest task of each history.
	newest map[types.ManagedObjectReference]int
}

func newSuppression(v *VCenter) *suppression {
	return &suppression{
		v:     v,
		on:    v.spec.PushRecentTask != nil && !*v.spec.PushRecentTask,
		ends:  v.spec.PushTaskEnd == nil || *v.spec.PushTaskEnd,
		reads: map[types.ManagedObjectReference]*firstRead{},
	}
}

func (s *suppression) set(on bool) {
	s.mu.Lock()
	s.on = on
	s.mu.Unlock()
}

func (s *suppression) setEnds(ends bool) {
	s.mu.Lock()
	s.ends = ends
	s.mu.Unlock()
}

func (s *suppression) pushesEnds() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ends
}

func (s *suppression) isOn() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.on
}

func (s *suppression) taskBegins(t *simulator.Task) {
	s.mu.Lock()
	s.last = taskNumber(t.Self)
	s.mu.Unlock()
}

func (s *suppression) firstRead(pc types.ManagedObjectReference, first bool) (*firstRead, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if first || s.reads[pc] == nil {
		s.reads[pc] = &firstRead{
			mark: s.last, sent: map[types.ManagedObjectReference]bool{}, newest: map[types.ManagedObjectReference]int{},
		}
	}
	return s.reads[pc], s.on
}

func taskNumber(ref types.ManagedObjectReference) int {
	n, _ := strconv.Atoi(strings.TrimPrefix(ref.Value, "task-"))
	return n
}

func (v *VCenter) waitForUpdates(ctx *simulator.Context, req *types.WaitForUpdatesEx) soap.HasFault {
	pc, ok := ctx.Session.Get(req.This).(*simulator.PropertyCollector)
	if !ok {
		return &methods.WaitForUpdatesExBody{Fault_: soapFault(&types.ManagedObjectNotFound{Obj: req.This})}
	}
	if v.collectors != nil {
		return v.collectors.of(pc).wait(ctx, req)
	}
	seen, _ := v.suppression.firstRead(req.This, req.Version == "")
	began := time.Now()
	for {
		body, ok := pc.WaitForUpdatesEx(ctx, req).(*methods.WaitForUpdatesExBody)
		if !ok || body.Fault_ != nil || body.Res.Returnval == nil {
			return body
		}
		set := body.Res.Returnval
		if v.visibility.any.Load() {
			v.hideUpdates(set)
		}
		_, on := v.suppression.firstRead(req.This, false)
		ends := v.suppression.pushesEnds()
		if req.Version == "" || !on && ends {
			seen.remember(set)
			return body
		}
		if on {
			seen.suppress(ctx, set)
		}
		if !ends {
			seen.dropLaterStates(set)
		}
		seen.remember(set)
		if len(set.FilterSet) > 0 || set.Truncated != nil && *set.Truncated {
			return body
		}
		// Nothing is left to report, so the wait goes on for what time is left.
		if req.Options != nil && req.Options.MaxWaitSeconds != nil {
			left := *req.Options.MaxWaitSeconds - int32(time.Since(began).Seconds())
			if left <= 0 {
				body.Res.Returnval = nil
				return body
			}
			options := *req.Options
			options.MaxWaitSeconds = &left
			again := *req
			again.Options = &options
			req, began = &again, time.Now()
		}
	}
}

// suppress removes changes of recentTask from an update set, and the tasks found
// through it after the first read.
func (r *firstRead) suppress(ctx *simulator.Context, set *types.UpdateSet) {
	var filters []types.PropertyFilterUpdate
	for _, f := range set.FilterSet {
		through, members := false, map[types.ManagedObjectReference]bool{}
		if filter, ok := ctx.Session.Get(f.Filter).(*simulator.PropertyFilter); ok {
			for _, o := range filter.Spec.ObjectSet {
				through = through || traverses(o.SelectSet, "recentTask")
				if list, ok := ctx.Session.Get(o.Obj).(*simulator.ListView); ok {
					ctx.WithLock(o.Obj, func() {
						for _, member := range list.View {
							members[member] = true
						}
					})
				}
			}
		}
		var objects []types.ObjectUpdate
		for _, o := range f.ObjectSet {
			if through && o.Obj.Type == "Task" && taskNumber(o.Obj) > r.mark && !members[o.Obj] {
				continue
			}
			if o.Kind == types.ObjectUpdateKindModify || r.sent[o.Obj] {
				var changes []types.PropertyChange
				for _, c := range o.ChangeSet {
					if c.Name != "recentTask" {
						changes = append(changes, c)
					}
				}
				if o.ChangeSet = changes; len(changes) == 0 && o.Kind != types.ObjectUpdateKindLeave {
					continue
				}
			}
			objects = append(objects, o)
		}
		if f.ObjectSet = objects; len(objects) > 0 {
			filters = append(filters, f)
		}
	}
	set.FilterSet = filters
}

// dropLaterStates removes history pages without a new task from an update set.
func (r *firstRead) dropLaterStates(set *types.UpdateSet) {
	var filters []types.PropertyFilterUpdate
	for _, f := range set.FilterSet {
		var objects []types.ObjectUpdate
		for _, o := range f.ObjectSet {
			if o.Obj.Type == "TaskHistoryCollector" && o.Kind == types.ObjectUpdateKindModify && newestTask(o) <= r.newest[o.Obj] {
				continue
			}
			objects = append(objects, o)
		}
		if f.ObjectSet = objects; len(objects) > 0 {
			filters = append(filters, f)
		}
	}
	set.FilterSet = filters
}

// newestTask is the number of the newest task on a history's page.
func newestTask(o types.ObjectUpdate) int {
	newest := 0
	for _, c := range o.ChangeSet {
		var page []types.TaskInfo
		switch val := c.Val.(type) {
		case *types.ArrayOfTaskInfo:
			page = val.TaskInfo
		case types.ArrayOfTaskInfo:
			page = val.TaskInfo
		}
		for _, info := range page {
			newest = max(newest, taskNumber(info.Task))
		}
	}
	return newest
}

func (r *firstRead) remember(set *types.UpdateSet) {
	for _, f := range set.FilterSet {
		for _, o := range f.ObjectSet {
			r.sent[o.Obj] = o.Kind != types.ObjectUpdateKindLeave
			if o.Obj.Type == "TaskHistoryCollector" {
				r.newest[o.Obj] = max(r.newest[o.Obj], newestTask(o))
			}
		}
	}
}

func traverses(set []types.BaseSelectionSpec, path string) bool {
	for _, s := range set {
		if t, ok := s.(*types.TraversalSpec); ok && (t.Path == path || traverses(t.SelectSet, path)) {
			return true
		}
	}
	return false
}
