package main

import (
	"fmt"
	"reflect"

	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// messages are the texts of a vCenter in faultstring and localizedMessage. The
// simulator leaves the first empty and puts a Go type name into the second.
var messages = map[string]string{
	"ConcurrentAccess": "The object has already been modified by a concurrent operation.",
	// A power on that fails because of its passthrough device.
	"GenericVmConfigFault":               "Module 'DevicePowerOn' power on failed.",
	"CannotAccessNetwork":                "Network interface 'Network adapter 1' uses a network that is not accessible.",
	"DisallowedOperationOnFailoverHost":  "The operation is not allowed on a failover host.",
	"InsufficientMemoryResourcesFault":   "The host does not have sufficient memory resources to satisfy the reservation.",
	"VmHostAffinityRuleViolation":        "The virtual machine would violate a VM-Host affinity rule.",
	"HostNotConnected":                   "Unable to communicate with the remote host, since it is disconnected.",
	"InsufficientFailoverResourcesFault": "Insufficient resources to satisfy configured failover level for vSphere HA.",
	"InsufficientResourcesFault":         "The available resources are insufficient for the operation.",
	"InvalidArgument":                    "A specified parameter was not correct.",
	"InvalidLogin":                       "Cannot complete login due to an incorrect user name or password.",
	"InvalidState":                       "The operation is not allowed in the current state.",
	"ManagedObjectNotFound":              "The object has already been deleted or has not been completely created",
	"MethodDisabled":                     "The method is disabled.",
	"NoCompatibleHost":                   "No host is compatible with the virtual machine.",
	"NoPermission":                       "Permission to perform this operation was denied.",
	"NotAuthenticated":                   "The session is not authenticated.",
	"NotFound":                           "The object or item referred to could not be found.",
	"NotSupported":                       "The operation is not supported on the object.",
	"RequestCanceled":                    "The task was canceled by a user.",
	"SystemError":                        "A general system error occurred.",
	"TaskInProgress":                     "The operation is not allowed because another task is in progress.",
	"Timedout":                           "Operation timed out.",
	"VirtualHardwareVersionNotSupported": "Virtual machine is incompatible with the host.",
	"ToolsUnavailable":                   "Cannot complete operation because VMware Tools is not running in this virtual machine.",
}

func faultName(f types.BaseMethodFault) string {
	return reflect.TypeOf(f).Elem().Name()
}

// message is the text of a vCenter for a fault.
func message(f types.BaseMethodFault) string {
	switch x := f.(type) {
	case *types.InvalidPowerState:
		return fmt.Sprintf("The attempted operation cannot be performed in the current state (%s).", powerWords[x.ExistingState])
	case *noDevice:
		return x.text
	case *types.GenericVmConfigFault:
		if x.Reason != "" {
			return x.Reason
		}
	case *types.CannotAccessVmConfig:
		return "Unable to access the virtual machine configuration: " + x.Reason.LocalizedMessage
	case *types.CannotAccessVmDevice:
		return fmt.Sprintf("Device '%s' uses backing '%s', which is not accessible.", x.Device, x.Backing)
	case *types.DisallowedMigrationDeviceAttached:
		return x.Fault.LocalizedMessage
	case *types.DeviceNotSupported:
		return fmt.Sprintf("Device '%s' uses backing '%s', which is not supported.", x.Device, x.Reason)
	}
	if m, ok := messages[faultName(f)]; ok {
		return m
	}
	return faultName(f)
}

var powerWords = map[types.VirtualMachinePowerState]string{
	types.VirtualMachinePowerStatePoweredOff: "Powered off",
	types.VirtualMachinePowerStatePoweredOn:  "Powered on",
	types.VirtualMachinePowerStateSuspended:  "Suspended",
}

func soapFault(f types.BaseMethodFault) *soap.Fault {
	fault := &soap.Fault{Code: "ServerFaultCode", String: message(f)}
	fault.Detail.Fault = f
	return fault
}
