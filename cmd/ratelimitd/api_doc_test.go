package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// docs/reference/grpc-api.md names every service and method of the admin API, and the OpenAPI next to it describes
// every field.
func TestAdminAPIIsDocumented(t *testing.T) {
	racetest.Sequential(t)
	page := filepath.Join("..", "..", "docs", "reference", "grpc-api.md")
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	names := 0
	want := func(shown string, what protoreflect.Descriptor) {
		t.Helper()
		names++
		if !strings.Contains(string(text), shown) {
			t.Errorf("%s does not have %s: %q", page, what.FullName(), shown)
		}
	}
	api := readOpenAPI(t)
	fields := 0
	protoregistry.GlobalFiles.RangeFilesByPackage(adminv1.File_ratelimitd_admin_v1_admin_proto.Package(), func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			s := file.Services().Get(i)
			want("\n### "+string(s.FullName())+"\n", s)
			for j := range s.Methods().Len() {
				want("\n- `"+string(s.Methods().Get(j).Name())+"`", s.Methods().Get(j))
			}
		}
		for i := range file.Messages().Len() {
			m := file.Messages().Get(i)
			for j := range m.Fields().Len() {
				fields++
				f := m.Fields().Get(j)
				if p := api.Definitions["v1"+string(m.Name())].Properties[f.JSONName()]; p.Description == "" && p.Title == "" {
					t.Errorf("the OpenAPI does not describe %s", f.FullName())
				}
			}
		}
		return true
	})
	if names < 15 || fields < 200 {
		t.Errorf("only %d names and %d fields", names, fields)
	}
}

// openAPI is the part of the admin API's OpenAPI that tests read.
type openAPI struct {
	Paths map[string]struct {
		Post struct {
			Responses map[string]struct {
				Schema struct {
					Ref string `json:"$ref"`
				} `json:"schema"`
			} `json:"responses"`
		} `json:"post"`
	} `json:"paths"`
	Definitions map[string]struct {
		Properties map[string]struct{ Title, Description string } `json:"properties"`
	} `json:"definitions"`
}

func readOpenAPI(t *testing.T) openAPI {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", "admin-api.swagger.json"))
	if err != nil {
		t.Fatal(err)
	}
	var api openAPI
	if err := json.Unmarshal(text, &api); err != nil {
		t.Fatal(err)
	}
	return api
}

// The OpenAPI of the admin API has every method, with the body of its answer and of its errors.
func TestOpenAPIHasEveryMethodAndItsErrors(t *testing.T) {
	api := readOpenAPI(t)
	protoregistry.GlobalFiles.RangeFilesByPackage(adminv1.File_ratelimitd_admin_v1_admin_proto.Package(), func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			s := file.Services().Get(i)
			for j := range s.Methods().Len() {
				path := "/" + string(s.FullName()) + "/" + string(s.Methods().Get(j).Name())
				answers := api.Paths[path].Post.Responses
				if answers["200"].Schema.Ref == "" || answers["default"].Schema.Ref != "#/definitions/v1Error" {
					t.Errorf("%s: answers %v", path, answers)
				}
			}
		}
		return true
	})
}
