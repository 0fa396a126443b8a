package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// follower is a client that follows hosts and their tasks through the
// container view, and the members of a list view, as Haulout does.
type follower struct {
	*bench
	collector, list types.ManagedObjectReference
	version         string
}

func follow(t *testing.T, spec *Spec) *follower {
	t.Helper()
	spec.OwnCollectors = true
	b := start(t, spec)
	f := &follower{bench: b}
	content := b.client.ServiceContent
	made, err := methods.CreatePropertyCollector(b.ctx, b.client, &types.CreatePropertyCollector{This: content.PropertyCollector})
	b.must(err)
	f.collector = made.Returnval
	hosts, err := methods.CreateContainerView(b.ctx, b.client, &types.CreateContainerView{
		This: *content.ViewManager, Container: content.RootFolder, Type: []string{"HostSystem"}, Recursive: true,
	})
	b.must(err)
	list, err := methods.CreateListView(b.ctx, b.client, &types.CreateListView{This: *content.ViewManager})
	b.must(err)
	f.list = list.Returnval
	tasks := func(kind string) types.BaseSelectionSpec {
		return &types.TraversalSpec{Type: kind, Path: "recentTask"}
	}
	f.filter(hosts.Returnval, "ContainerView", []types.BaseSelectionSpec{tasks("HostSystem")},
		types.PropertySpec{Type: "HostSystem", PathSet: []string{"name", "runtime.inMaintenanceMode", "recentTask"}},
		types.PropertySpec{Type: "Task", PathSet: []string{"info"}})
	f.filter(f.list, "ListView", []types.BaseSelectionSpec{tasks("VirtualMachine")},
		types.PropertySpec{Type: "VirtualMachine", PathSet: []string{"name", "runtime.powerState", "runtime.question", `config.extraConfig["guestinfo.x"]`}},
		types.PropertySpec{Type: "Task", PathSet: []string{"info"}})
	return f
}

func (f *follower) filter(view types.ManagedObjectReference, kind string, through []types.BaseSelectionSpec, wanted ...types.PropertySpec) {
	f.Helper()
	_, err := methods.CreateFilter(f.ctx, f.client, &types.CreateFilter{This: f.collector, Spec: types.PropertyFilterSpec{
		PropSet: wanted,
		ObjectSet: []types.ObjectSpec{{
			Obj: view, Skip: types.NewBool(true),
			SelectSet: []types.BaseSelectionSpec{&types.TraversalSpec{Type: kind, Path: "view", SelectSet: through}},
		}},
	}})
	f.must(err)
}

// ask makes one call with this version.
func (f *follower) ask(version string, seconds, most int32) (*types.UpdateSet, error) {
	res, err := methods.WaitForUpdatesEx(f.ctx, f.client, &types.WaitForUpdatesEx{
		This: f.collector, Version: version,
		Options: &types.WaitOptions{MaxWaitSeconds: types.NewInt32(seconds), MaxObjectUpdates: most},
	})
	if err != nil {
		return nil, err
	}
	return res.Returnval, nil
}

// words is an update set as one line per object, sorted.
func words(set *types.UpdateSet) []string {
	var all []string
	if set == nil {
		return all
	}
	for _, filter := range set.FilterSet {
		for _, o := range filter.ObjectSet {
			line := fmt.Sprint(o.Kind, " ", o.Obj.Type)
			for _, c := range o.ChangeSet {
				switch v := c.Val.(type) {
				case types.TaskInfo:
					line += fmt.Sprint(" ", v.Name, "=", v.State)
				case types.ArrayOfManagedObjectReference:
					line += fmt.Sprint(" ", c.Name, "=", len(v.ManagedObjectReference))
				default:
					line += fmt.Sprint(" ", c.Name, "=", v)
				}
			}
			all = append(all, line)
		}
	}
	slices.Sort(all)
	return all
}

// next waits for an update.
func (f *follower) next() []string {
	f.Helper()
	set, err := f.ask(f.version, 5, 0)
	f.must(err)
	if set == nil {
		f.Fatal("no update")
	}
	f.version = set.Version
	return words(set)
}

// quiet checks that there is no further update.
func (f *follower) quiet() {
	f.Helper()
	set, err := f.ask(f.version, 0, 0)
	f.must(err)
	if set != nil {
		f.Fatalf("update: %v", words(set))
	}
}

// untilReported reads until a line with this prefix contains this fact. Which
// facts are in one set depends on timing.
func (f *follower) untilReported(line, fact string) {
	f.Helper()
	var all []string
	matches := func(l string) bool { return strings.HasPrefix(l, line) && strings.Contains(l, fact) }
	for end := time.Now().Add(deadline); !slices.ContainsFunc(all, matches); {
		if time.Now().After(end) {
			f.Fatalf("no %q of %q, but %v", fact, line, all)
		}
		all = append(all, f.next()...)
	}
}

func (f *follower) members(add, remove []types.ManagedObjectReference) {
	f.Helper()
	_, err := methods.ModifyListView(f.ctx, f.client, &types.ModifyListView{This: f.list, Add: add, Remove: remove})
	f.must(err)
}

func isFault(err error, name string) bool {
	return err != nil && soap.IsSoapFault(err) && strings.HasSuffix(fmt.Sprintf("%T", soap.ToSoapFault(err).VimFault()), name)
}

func TestOnlyDifferencesAreReported(t *testing.T) {
	f := follow(t, twoHosts())
	f.want(f.next(), []string{
		"enter HostSystem name=esx1 runtime.inMaintenanceMode=false recentTask=0",
		"enter HostSystem name=esx2 runtime.inMaintenanceMode=false recentTask=0",
	})
	f.quiet()
	f.ctl("POST", "/hosts/esx2/enter", nil, nil)
	f.untilReported("modify HostSystem", "runtime.inMaintenanceMode=true")
	f.ctl("POST", "/hosts/esx1/enter", nil, nil)
	f.untilReported("enter Task", "EnterMaintenanceMode_Task=running")
	f.ctl("POST", "/hosts", map[string]any{"cluster": "c1", "name": "esx3"}, nil)
	f.untilReported("enter HostSystem", "name=esx3")
	f.quiet()
	f.ctl("DELETE", "/hosts/esx3", nil, nil)
	f.want(f.next(), []string{"leave HostSystem"})
	// A property without a filter ends no wait.
	f.ctl("PATCH", "/vms/gpu1", map[string]any{"tools": false}, nil)
	f.quiet()
}

// A new host may be reported before its datastores are mounted.
func TestMountIsReported(t *testing.T) {
	f := follow(t, twoHosts())
	f.filter(f.list, "ListView", nil, types.PropertySpec{Type: "HostSystem", PathSet: []string{"datastore"}})
	f.members([]types.ManagedObjectReference{f.host("esx2").Reference()}, nil)
	f.untilReported("enter HostSystem", "datastore=1")
	v := f.lab.v
	v.mu.Lock()
	h, err := v.findHost("esx2")
	f.must(err)
	f.must(v.mount(h, "ds2"))
	v.mu.Unlock()
	f.untilReported("modify HostSystem", "datastore=2")
}

func TestMembersOfAListAreReportedAsDifferences(t *testing.T) {
	f := follow(t, twoHosts())
	f.next()
	vm := f.vm("gpu1").Reference()
	f.members([]types.ManagedObjectReference{vm}, nil)
	f.want(f.next(), []string{"enter VirtualMachine name=gpu1 runtime.powerState=poweredOn"})
	f.quiet()
	off, err := f.vm("gpu1").PowerOff(f.ctx)
	f.must(err)
	f.members([]types.ManagedObjectReference{off.Reference()}, nil)
	f.untilReported("modify VirtualMachine", "runtime.powerState=poweredOff")
	f.must(off.Wait(f.ctx))
	f.members(nil, []types.ManagedObjectReference{vm, off.Reference()})
	f.untilReported("leave VirtualMachine", "")
	f.quiet()
}

func TestLastCompleteResponseCanBeRequestedAgain(t *testing.T) {
	f := follow(t, twoHosts())
	f.next()
	f.ctl("POST", "/hosts/esx1/enter", nil, nil)
	set, err := f.ask(f.version, 5, 0)
	f.must(err)
	again, err := f.ask(f.version, 5, 0)
	f.must(err)
	f.want(again.Version, set.Version)
	f.want(words(again), words(set))
	f.version = set.Version
	f.quiet()
	if _, err = f.ask("1", 0, 0); !isFault(err, "InvalidCollectorVersion") {
		t.Fatalf("an old version: %v", err)
	}
	if _, err = f.ask("nonsense", 0, 0); !isFault(err, "InvalidCollectorVersion") {
		t.Fatalf("an unknown version: %v", err)
	}
	f.version = ""
	f.want(len(f.next()), 3)
}

func TestVersionOfATruncatedSetIsUsedOnce(t *testing.T) {
	f := follow(t, &Spec{Bulk: &BulkSpec{Hosts: 250}})
	first, err := f.ask("", 5, 0)
	f.must(err)
	f.want(*first.Truncated, true)
	second, err := f.ask(first.Version, 5, 0)
	f.must(err)
	f.want(*second.Truncated, true)
	if _, err = f.ask(first.Version, 5, 0); !isFault(err, "InvalidCollectorVersion") {
		t.Fatalf("a truncated version, twice: %v", err)
	}
	third, err := f.ask(second.Version, 5, 0)
	f.must(err)
	f.want(third.Truncated == nil, true)
	f.want([]int{len(words(first)), len(words(second)), len(words(third))}, []int{100, 100, 50})
	f.version = third.Version
	f.quiet()
	small, err := f.ask("", 5, 10)
	f.must(err)
	f.want(len(words(small)), 10)
}

func TestWaitIsCancelled(t *testing.T) {
	f := follow(t, twoHosts())
	f.next()
	ended := make(chan error, 1)
	go func() {
		_, err := f.ask(f.version, 30, 0)
		ended <- err
	}()
	for {
		_, err := methods.CancelWaitForUpdates(f.ctx, f.client, &types.CancelWaitForUpdates{This: f.collector})
		f.must(err)
		select {
		case err := <-ended:
			if !isFault(err, "RequestCanceled") {
				t.Fatalf("ended by %v", err)
			}
			f.quiet()
			return
		case <-time.After(5 * time.Millisecond):
			// The wait may not have started.
		}
	}
}

func TestHistoryReportsTasksAndTheirStates(t *testing.T) {
	f := follow(t, twoHosts())
	made, err := methods.CreateCollectorForTasks(f.ctx, f.client, &types.CreateCollectorForTasks{
		This: *f.client.ServiceContent.TaskManager,
		Filter: types.TaskFilterSpec{Entity: &types.TaskFilterSpecByEntity{
			Entity: f.client.ServiceContent.RootFolder, Recursion: types.TaskFilterSpecRecursionOptionAll,
		}},
	})
	f.must(err)
	collector, err := methods.CreatePropertyCollector(f.ctx, f.client, &types.CreatePropertyCollector{This: f.client.ServiceContent.PropertyCollector})
	f.must(err)
	f.collector = collector.Returnval
	_, err = methods.CreateFilter(f.ctx, f.client, &types.CreateFilter{This: f.collector, Spec: types.PropertyFilterSpec{
		PropSet:   []types.PropertySpec{{Type: "TaskHistoryCollector", PathSet: []string{"latestPage"}}},
		ObjectSet: []types.ObjectSpec{{Obj: made.Returnval}},
	}})
	f.must(err)
	page := func() string {
		set, err := f.ask(f.version, 5, 0)
		f.must(err)
		f.version = set.Version
		tasks := set.FilterSet[0].ObjectSet[0].ChangeSet[0].Val.(types.ArrayOfTaskInfo).TaskInfo
		line := ""
		for _, task := range tasks {
			line += fmt.Sprint(task.EntityName, "=", task.State, " ")
		}
		return line
	}
	f.want(page(), "")
	f.ctl("POST", "/hosts/esx1/enter", nil, nil)
	f.want(page(), "esx1=running ")
	f.ctl("POST", "/hosts/esx1/cancel", nil, nil)
	f.want(page(), "esx1=error ")
	_, err = methods.DestroyCollector(f.ctx, f.client, &types.DestroyCollector{This: made.Returnval})
	f.must(err)
	f.want(len(f.lab.v.collectors.histories), 0)
}

func TestOtherFiltersGetNoUpdatesOfManyForeignChanges(t *testing.T) {
	f := follow(t, &Spec{Bulk: &BulkSpec{Hosts: 20, VMs: 40}, Delays: Delays{EnterMs: 60000}})
	f.want(len(f.next()), 20)
	f.ctl("POST", "/change-rate", map[string]any{"perSecond": 2000}, nil)
	f.quiet()
	var click struct {
		AcceptedNs int64 `json:"acceptedNs"`
	}
	f.ctl("POST", "/hosts/bulk-0001/enter", nil, &click)
	f.want(f.next(), []string{"enter Task EnterMaintenanceMode_Task=running", "modify HostSystem recentTask=1"})
	if late := time.Since(time.Unix(0, click.AcceptedNs)); late < 0 || late > deadline {
		t.Fatalf("accepted %v ago", late)
	}
	f.ctl("POST", "/change-rate", map[string]any{"perSecond": 0}, nil)
	f.quiet()
}
