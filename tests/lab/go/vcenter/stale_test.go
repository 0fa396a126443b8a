package main

import (
	"net/http"
	"strings"
	"testing"

	"github.com/vmware/govmomi/property"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"
)

func TestStaleRowIsOnEachPageAndHasNoTask(t *testing.T) {
	for _, own := range []bool{false, true} {
		spec := twoHosts()
		spec.OwnCollectors = own
		b := start(t, spec)
		var stale struct {
			Task string `json:"task"`
		}
		b.ctl("POST", "/hosts/esx1/task", map[string]any{"method": "EnterMaintenanceMode_Task", "stale": true}, &stale)
		h := b.history()
		b.want(states(h.changes()), "esx1=queued ")
		b.ctl("POST", "/hosts/esx2/task", map[string]any{"durationMs": 60000}, nil)
		b.want(states(h.changes()), "esx2=running esx1=queued ")
		var read mo.Task
		ref := types.ManagedObjectReference{Type: "Task", Value: stale.Task}
		err := property.DefaultCollector(b.client.Client).RetrieveOne(b.ctx, ref, []string{"info.state"}, &read)
		b.want(err != nil, true)
	}
}

func TestTasksAreWithheldOnRequest(t *testing.T) {
	b := start(t, twoHosts())
	b.ctl("PATCH", "/settings", map[string]any{"withholdTasks": true}, nil)
	var made struct {
		Task string `json:"task"`
	}
	b.ctl("POST", "/hosts/esx1/task", map[string]any{"durationMs": 60000}, &made)
	var content []types.ObjectContent
	ref := types.ManagedObjectReference{Type: "Task", Value: made.Task}
	b.must(property.DefaultCollector(b.client.Client).Retrieve(b.ctx, []types.ManagedObjectReference{ref}, []string{"info.state"}, &content))
	b.want(len(content[0].MissingSet), 1)
	fault, denied := content[0].MissingSet[0].Fault.Fault.(*types.NoPermission)
	b.want(denied, true)
	b.want(fault.Object.Value+" "+fault.PrivilegeId, "group-d1 System.Read")
}

func TestRepliesNameTheVersionThatWasApplied(t *testing.T) {
	b := start(t, twoHosts())
	req, err := http.NewRequestWithContext(b.ctx, http.MethodPost, b.lab.server.url(), strings.NewReader(""))
	b.must(err)
	req.Header.Set("SOAPAction", "urn:vim25/8.0")
	res, err := http.DefaultClient.Do(req)
	b.must(err)
	b.must(res.Body.Close())
	b.want(res.Header.Get("x-applied-soapaction"), "urn:vim25/8.0.3.0")
}
