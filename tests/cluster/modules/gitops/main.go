// Says of a Kubernetes object what GitOps tools say of it: `gitops VERB [SCRIPT] < OBJECT.json`, answer as JSON.
//
//	kstatus          Flux: its own library
//	flux FILE        Flux: by the healthCheckExprs of the Kustomization, as JSON, in this file
//	health SCRIPT    Argo CD: the object's health by this Lua script
//	actions SCRIPT   Argo CD: which actions this Lua script offers
//	action SCRIPT    Argo CD: what this Lua script makes of the object
//
// Argo CD is a module of hundreds of dependencies, so its few lines around the interpreter are written again here: the same
// interpreter with the same libraries (no `string`, no `io`), the same limit of one second, the same encoding of objects.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	kustomize "github.com/fluxcd/kustomize-controller/api/v1"
	"github.com/fluxcd/pkg/runtime/cel"
	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	luajson "layeh.com/gopher-json"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	object := &unstructured.Unstructured{}
	if err := json.NewDecoder(os.Stdin).Decode(object); err != nil {
		return err
	}
	if len(arguments) == 1 && arguments[0] == "kstatus" {
		found, err := status.Compute(object)
		return printStatus(found, err)
	}
	if len(arguments) != 2 {
		return fmt.Errorf("usage: gitops kstatus | flux FILE | health SCRIPT | actions SCRIPT | action SCRIPT")
	}
	script, err := os.ReadFile(arguments[1])
	if err != nil {
		return err
	}
	if arguments[0] == "flux" {
		found, err := byExpressions(object, script)
		return printStatus(found, err)
	}
	answer, err := interpret(object.Object, string(script))
	if err != nil {
		return err
	}
	if arguments[0] == "health" {
		return checkHealth(answer)
	}
	_, err = os.Stdout.Write(answer)
	return err
}

func printStatus(found *status.Result, err error) error {
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]string{
		"status": found.Status.String(), "message": found.Message,
	})
}

// byExpressions judges an object by what a Kustomization says of its kind; a Kustomization with an unknown field is refused.
func byExpressions(object *unstructured.Unstructured, file []byte) (*status.Result, error) {
	kustomization := &kustomize.Kustomization{}
	decoder := json.NewDecoder(bytes.NewReader(file))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(kustomization); err != nil {
		return nil, err
	}
	for _, check := range kustomization.Spec.HealthCheckExprs {
		if check.APIVersion == object.GetAPIVersion() && check.Kind == object.GetKind() {
			evaluator, err := cel.NewStatusEvaluator(&check.HealthCheckExpressions)
			if err != nil {
				return nil, err
			}
			return evaluator.Evaluate(context.Background(), object)
		}
	}
	return nil, fmt.Errorf("spec.healthCheckExprs says nothing of %s %s", object.GetAPIVersion(), object.GetKind())
}

// interpret runs a script with the global `obj`, and returns the table that it returns.
func interpret(object map[string]any, script string) ([]byte, error) {
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	libraries := map[string]lua.LGFunction{
		lua.LoadLibName: lua.OpenPackage,
		lua.BaseLibName: lua.OpenBase,
		lua.TabLibName:  lua.OpenTable,
	}
	for _, name := range []string{lua.LoadLibName, lua.BaseLibName, lua.TabLibName} {
		call := lua.P{Fn: state.NewFunction(libraries[name]), NRet: 0, Protect: true}
		if err := state.CallByParam(call, lua.LString(name)); err != nil {
			return nil, err
		}
	}
	deadline, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	state.SetContext(deadline)
	state.SetGlobal("obj", value(state, object))
	if err := state.DoString(script); err != nil {
		return nil, err
	}
	returned := state.Get(-1)
	if returned.Type() != lua.LTTable {
		return nil, fmt.Errorf("expect table output from Lua script, not %s", returned.Type())
	}
	return luajson.Encode(returned)
}

// checkHealth prints a health if it is one that Argo CD knows.
func checkHealth(answer []byte) error {
	health := struct {
		Status  string `json:"status"`
		Message string `json:"message"`
	}{}
	if err := json.Unmarshal(answer, &health); err != nil {
		return err
	}
	switch health.Status {
	case "Unknown", "Progressing", "Suspended", "Healthy", "Degraded", "Missing":
		return json.NewEncoder(os.Stdout).Encode(health)
	}
	return fmt.Errorf("Lua returned an invalid health status %q", health.Status)
}

// value returns JSON as Lua; gopher-json does not know the integers of Kubernetes' objects.
func value(state *lua.LState, given any) lua.LValue {
	switch known := given.(type) {
	case bool:
		return lua.LBool(known)
	case float64:
		return lua.LNumber(known)
	case int64:
		return lua.LNumber(known)
	case string:
		return lua.LString(known)
	case []any:
		list := state.CreateTable(len(known), 0)
		for _, item := range known {
			list.Append(value(state, item))
		}
		return list
	case map[string]any:
		table := state.CreateTable(0, len(known))
		for key, item := range known {
			table.RawSetString(key, value(state, item))
		}
		return table
	}
	return lua.LNil
}
