package main

import (
	"strings"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"
)

// maxResult limits the size and the depth of a result: the limits of clients
// are lower, and this program keeps each result while it runs.
const (
	maxResultBytes  = 64 << 20
	maxResultLevels = 10_000
)

// ResultSpec describes the result of a task: text of so many bytes, or a value
// with at least so many levels of nested elements. Results of real tasks may be
// either: a patch scan returns its report as one string.
type ResultSpec struct {
	ResultBytes  int `json:"resultBytes,omitempty"`
	ResultLevels int `json:"resultLevels,omitempty"`
}

func (r ResultSpec) check() error {
	switch {
	case r.ResultBytes < 0 || r.ResultBytes > maxResultBytes:
		return badRequest("resultBytes %d: want 0 to %d", r.ResultBytes, maxResultBytes)
	case r.ResultLevels < 0 || r.ResultLevels > maxResultLevels:
		return badRequest("resultLevels %d: want 0 to %d", r.ResultLevels, maxResultLevels)
	case r.ResultBytes > 0 && r.ResultLevels > 0:
		return badRequest("resultBytes and resultLevels: want one of them")
	}
	return nil
}

// value is the result; nil where none is described.
func (r ResultSpec) value() any {
	switch {
	case r.ResultBytes > 0:
		return strings.Repeat("x", r.ResultBytes)
	case r.ResultLevels > 0:
		// A fault and its cause are two elements.
		fault := &types.SystemError{Reason: "innermost"}
		for range (r.ResultLevels + 1) / 2 {
			outer := &types.SystemError{}
			outer.FaultCause = &types.LocalizedMethodFault{Fault: fault}
			fault = outer
		}
		return *fault
	}
	return nil
}

// foreignTask is a task of another user that does nothing. While one of a VM
// runs, other operations on the VM are refused.
type foreignTask struct {
	Method     string `json:"method,omitempty"`
	DurationMs int    `json:"durationMs,omitempty"`
	// Stale makes it a row of the task histories, and nothing else.
	Stale bool `json:"stale,omitempty"`
	ResultSpec
}

// runForeign starts it. The mutex is held.
func (v *VCenter) runForeign(f foreignTask, entity mo.Entity, who caller) *simulator.Task {
	if f.Method == "" {
		f.Method = "ScanHostPatchV2_Task"
	}
	t := v.newTask(who, f.Method, entity)
	if f.Stale {
		v.stale.add(t)
		return t
	}
	v.publish(t)
	if f.DurationMs == 0 {
		v.finish(t, f.value(), nil)
		return t
	}
	of := entity.Reference()
	if _, isVM := v.guests[of]; isVM && v.busy[of] == nil {
		v.busy[of] = &busy{task: t.Self}
	}
	v.later(f.DurationMs, func() {
		if b := v.busy[of]; b != nil && b.task == t.Self {
			delete(v.busy, of)
		}
		v.finish(t, f.value(), nil)
	})
	return t
}
