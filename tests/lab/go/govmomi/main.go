// Command govmomi is a client that the benches compare with: it follows all
// hosts and their tasks with govmomi's own waiter. It prints when it is in
// sync, and when it sees that one host enters or leaves maintenance mode.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/url"
	"os"
	"time"

	"github.com/vmware/govmomi"
	"github.com/vmware/govmomi/property"
	"github.com/vmware/govmomi/session"
	"github.com/vmware/govmomi/view"
	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

func main() {
	began := time.Now()
	sdk := flag.String("sdk", "", "the vCenter's `URL`")
	ca := flag.String("ca", "", "PEM `file` of the authority that signed its certificate")
	user := flag.String("user", "", "who logs in")
	password := flag.String("password", "", "that user's password")
	host := flag.String("host", "", "moref of the host that is clicked on")
	flag.Parse()
	if err := run(began, *sdk, *ca, url.UserPassword(*user, *password), *host); err != nil {
		fmt.Fprintln(os.Stderr, "govmomi:", err)
		os.Exit(1)
	}
}

func say(line map[string]any) { _ = json.NewEncoder(os.Stdout).Encode(line) }

func run(began time.Time, sdk, ca string, login *url.Userinfo, host string) error {
	ctx := context.Background()
	u, err := url.Parse(sdk)
	if err != nil {
		return err
	}
	client := soap.NewClient(u, false)
	client.UserAgent = "govmomi"
	if err := client.SetRootCAs(ca); err != nil {
		return err
	}
	vim, err := vim25.NewClient(ctx, client)
	if err != nil {
		return err
	}
	c := &govmomi.Client{Client: vim, SessionManager: session.NewManager(vim)}
	if err := c.Login(ctx, login); err != nil {
		return err
	}
	hosts, err := view.NewManager(vim).CreateContainerView(ctx, vim.ServiceContent.RootFolder, []string{"HostSystem"}, true)
	if err != nil {
		return err
	}
	through := hosts.TraversalSpec()
	through.SelectSet = []types.BaseSelectionSpec{&types.TraversalSpec{Type: "HostSystem", Path: "recentTask"}}
	filter := new(property.WaitFilter).Add(hosts.Reference(), "HostSystem", []string{
		"name", "runtime.connectionState", "runtime.inMaintenanceMode", "runtime.inQuarantineMode", "recentTask",
	}, through)
	filter.Spec.PropSet = append(filter.Spec.PropSet, types.PropertySpec{Type: "Task", PathSet: []string{"info"}})
	ready, seen := false, 0
	return property.WaitForUpdates(ctx, property.DefaultCollector(vim), filter, func(updates []types.ObjectUpdate) bool {
		for _, u := range updates {
			if u.Obj.Type == "HostSystem" && u.Kind == types.ObjectUpdateKindEnter {
				seen++
			}
			for _, change := range u.ChangeSet {
				info, ok := change.Val.(types.TaskInfo)
				if !ready || !ok || info.DescriptionId != "HostSystem.enterMaintenanceMode" || info.Entity == nil || info.Entity.Value != host {
					continue
				}
				entering := info.State == types.TaskInfoStateRunning || info.State == types.TaskInfoStateQueued
				say(map[string]any{"entering": entering, "ns": time.Now().UnixNano()})
			}
		}
		if !ready && !filter.Truncated {
			ready = true
			say(map[string]any{"ready": true, "ns": time.Now().UnixNano(), "ms": float64(time.Since(began).Microseconds()) / 1000, "hosts": seen})
		}
		return false
	})
}
