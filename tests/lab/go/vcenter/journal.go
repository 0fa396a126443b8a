package main

import (
	"encoding/json"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/vmware/govmomi/simulator"
)

// Entry is one line of the journal.
type Entry struct {
	Seq  int64     `json:"seq"`
	Time time.Time `json:"time"`
	// Kind is call, power, maintenance, move, reconfigure, host, event, attribute,
	// session or fault.
	Kind    string `json:"kind"`
	User    string `json:"user,omitempty"`
	Session string `json:"session,omitempty"`
	Method  string `json:"method,omitempty"`
	// Operation is a call's operationID, and Agent a login's User-Agent.
	Operation string          `json:"operation,omitempty"`
	Agent     string          `json:"agent,omitempty"`
	Object    string          `json:"object,omitempty"`
	Ref       string          `json:"ref,omitempty"`
	Host      string          `json:"host,omitempty"`
	Task      string          `json:"task,omitempty"`
	Args      json.RawMessage `json:"args,omitempty"`
	Detail    string          `json:"detail,omitempty"`
	Cause     string          `json:"cause,omitempty"`
}

// Journal records every call that changes something and every change, so that a
// test can check what was done and how often. It has its own mutex: calls are
// recorded before they are dispatched.
type Journal struct {
	mu      sync.Mutex
	entries []Entry
	changed chan struct{}
}

func newJournal() *Journal { return &Journal{changed: make(chan struct{})} }

func (j *Journal) add(e Entry) {
	j.mu.Lock()
	defer j.mu.Unlock()
	e.Seq = int64(len(j.entries)) + 1
	e.Time = time.Now()
	j.entries = append(j.entries, e)
	close(j.changed)
	j.changed = make(chan struct{})
}

// after returns the entries after seq and a channel that the next entry closes.
func (j *Journal) after(seq int64) ([]Entry, <-chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	seq = max(0, min(seq, int64(len(j.entries))))
	return append([]Entry{}, j.entries[seq:]...), j.changed
}

// readers are the prefixes of the names of calls that change nothing in the
// inventory.
var readers = []string{
	"Retrieve", "ContinueRetrieve", "CancelRetrieve", "Wait", "CancelWait", "CheckForUpdates", "Find", "Query", "Fetch", "Has", "Get", "Read",
	"CreateFilter", "CreatePropertyCollector", "CreateContainerView", "CreateListView", "CreateInventoryView", "CreateCollector",
	"DestroyView", "DestroyPropertyCollector", "DestroyPropertyFilter", "DestroyCollector",
	"ModifyListView", "ResetListView", "SetCollectorPageSize", "ResetCollector", "RewindCollector",
	"CurrentTime", "SessionIsActive", "PlaceVm", "CheckRelocate", "Login", "Logout", "List",
}

func changesSomething(method string) bool {
	for _, prefix := range readers {
		if strings.HasPrefix(method, prefix) {
			return false
		}
	}
	return true
}

func (v *VCenter) recordCall(who caller, method *simulator.Method) {
	v.journal.add(Entry{
		Kind: "call", User: who.User, Session: who.Session, Method: method.Name, Operation: method.Header.ID,
		Object: v.nameOf(method.This), Ref: method.This.Value, Args: arguments(method.Body),
	})
}

// arguments is a call's body without its `_this`, which the entry names.
func arguments(body any) json.RawMessage {
	if rv := reflect.ValueOf(body); rv.Kind() != reflect.Pointer || rv.IsNil() {
		return nil
	}
	b, err := json.Marshal(body)
	if err != nil {
		return nil
	}
	var m map[string]json.RawMessage
	if json.Unmarshal(b, &m) != nil {
		return nil
	}
	delete(m, "_this")
	delete(m, "_typeName")
	if len(m) == 0 {
		return nil
	}
	b, err = json.Marshal(m)
	if err != nil {
		return nil
	}
	return b
}
