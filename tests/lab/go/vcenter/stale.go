package main

import (
	"slices"
	"sync"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// staleFor is how long a stale row is queued.
const staleFor = 2 * 365 * 24 * time.Hour

// staleRows are rows of task histories whose tasks do not exist any more. A public
// recording of a vCenter 5 (vmware/pyvmomi, tests/files/unknown_method.xml) has
// three that were queued for more than a year. Its mutex is a leaf lock.
type staleRows struct {
	mu   sync.Mutex
	rows []types.TaskInfo
}

// add keeps what the task says, as of long ago. The task itself is not published.
func (s *staleRows) add(t *simulator.Task) {
	s.mu.Lock()
	defer s.mu.Unlock()
	row := t.Info
	row.State = types.TaskInfoStateQueued
	row.QueueTime = row.QueueTime.Add(-staleFor)
	row.StartTime = nil
	s.rows = append(s.rows, row)
}

func (s *staleRows) all() []types.TaskInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.rows)
}

// addTo puts the rows on the pages of the simulator's histories.
func (s *staleRows) addTo(set *types.UpdateSet) {
	rows := s.all()
	if len(rows) == 0 {
		return
	}
	for i := range set.FilterSet {
		for j := range set.FilterSet[i].ObjectSet {
			changes := set.FilterSet[i].ObjectSet[j].ChangeSet
			for k := range changes {
				if changes[k].Name != "latestPage" {
					continue
				}
				var page []types.TaskInfo
				switch val := changes[k].Val.(type) {
				case *types.ArrayOfTaskInfo:
					page = val.TaskInfo
				case types.ArrayOfTaskInfo:
					page = val.TaskInfo
				}
				changes[k].Val = &types.ArrayOfTaskInfo{TaskInfo: slices.Concat(page, rows)}
			}
		}
	}
}

// WaitForUpdatesEx implements the SOAP method.
func (v *VCenter) WaitForUpdatesEx(ctx *simulator.Context, req *types.WaitForUpdatesEx) soap.HasFault {
	body := v.waitForUpdates(ctx, req)
	if b, ok := body.(*methods.WaitForUpdatesExBody); ok && b.Res != nil && b.Res.Returnval != nil {
		v.stale.addTo(b.Res.Returnval)
	}
	return body
}
