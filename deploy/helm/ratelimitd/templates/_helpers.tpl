{{- define "ratelimitd.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains "ratelimitd" .Release.Name -}}
{{- .Release.Name -}}
{{- else -}}
{{- printf "%s-ratelimitd" .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "ratelimitd.selector" -}}
app.kubernetes.io/name: ratelimitd
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "ratelimitd.labels" -}}
{{ include "ratelimitd.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | trunc 63 | trimAll "-_." | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 }}
{{- end -}}

{{- define "ratelimitd.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "ratelimitd.fullname" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{- /* Prometheus' job: no two releases share one. */ -}}
{{- define "ratelimitd.job" -}}
{{- .Release.Namespace }}/{{ include "ratelimitd.fullname" . }}
{{- end -}}

{{- define "ratelimitd.regionsService" -}}
{{- include "ratelimitd.fullname" . | trunc 55 | trimSuffix "-" }}-regions
{{- end -}}

{{- define "ratelimitd.scales" -}}
{{- if and .Values.redis.url .Values.autoscaling.enabled }}true{{ end -}}
{{- end -}}

{{- define "ratelimitd.rulesConfigMap" -}}
{{- .Values.rules.existingConfigMap | default (printf "%s-rules" (include "ratelimitd.fullname" .)) -}}
{{- end -}}

{{- define "ratelimitd.tokenSecret" -}}
{{- if .Values.admin.existingSecret -}}
{{- .Values.admin.existingSecret -}}
{{- else if .Values.admin.generateToken -}}
{{- include "ratelimitd.fullname" . }}-admin
{{- end -}}
{{- end -}}

{{- /* What contradicts itself is an error here, because it would be a surprise in the cluster. */ -}}
{{- define "ratelimitd.validate" -}}
{{- /* toYaml gives nothing for what it cannot write, and labels or volumes would be missing without a word. */ -}}
{{- if not (toYaml .Values) }}{{ fail "a value has a control character, which YAML cannot write" }}{{ end -}}
{{- $sources := 0 -}}
{{- if .Values.rules.files }}{{ $sources = add1 $sources }}{{ end -}}
{{- if .Values.rules.existingConfigMap }}{{ $sources = add1 $sources }}{{ end -}}
{{- if .Values.xds.url }}{{ $sources = add1 $sources }}{{ end -}}
{{- if gt (int $sources) 1 }}{{ fail "rules have one source: set only one of rules.files, rules.existingConfigMap and xds.url" }}{{ end -}}
{{- if gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas) }}{{ fail "autoscaling.minReplicas is more than autoscaling.maxReplicas" }}{{ end -}}
{{- if and .Values.admin.existingSecret .Values.admin.generateToken }}{{ fail "set admin.existingSecret or admin.generateToken, not both" }}{{ end -}}
{{- if and .Values.admin.expose (not (include "ratelimitd.tokenSecret" .)) }}{{ fail "admin.expose needs a token: set admin.existingSecret, or admin.generateToken=true" }}{{ end -}}
{{- if and (not .Values.redis.url) (or .Values.redis.existingSecret .Values.redis.tls.enabled) }}{{ fail "redis.existingSecret and redis.tls need redis.url" }}{{ end -}}
{{- if and .Values.redis.tls.clientCertificate (not .Values.redis.tls.existingSecret) }}{{ fail "redis.tls.clientCertificate needs redis.tls.existingSecret" }}{{ end -}}
{{- if and .Values.redis.tls.existingSecret (not .Values.redis.tls.enabled) }}{{ fail "redis.tls.existingSecret needs redis.tls.enabled=true" }}{{ end -}}
{{- if and .Values.xds.tls.clientCertificate (not .Values.xds.tls.existingSecret) }}{{ fail "xds.tls.clientCertificate needs xds.tls.existingSecret" }}{{ end -}}
{{- if and .Values.xds.tls.existingSecret (not .Values.xds.tls.enabled) }}{{ fail "xds.tls.existingSecret needs xds.tls.enabled=true" }}{{ end -}}
{{- if and .Values.xds.tls.enabled (not .Values.xds.url) }}{{ fail "xds.tls needs xds.url" }}{{ end -}}
{{- if and (or .Values.tls.clientCertificates .Values.tls.clientSAN) (not .Values.tls.existingSecret) }}{{ fail "tls.clientCertificates and tls.clientSAN need tls.existingSecret" }}{{ end -}}
{{- with .Values.overrides -}}
{{- if and (eq .source "redis") (not $.Values.redis.url) }}{{ fail "overrides.source=redis needs redis.url" }}{{ end -}}
{{- if and (eq .source "file") (not .existingConfigMap) }}{{ fail "overrides.source=file needs overrides.existingConfigMap" }}{{ end -}}
{{- if and .existingConfigMap (ne .source "file") }}{{ fail "overrides.existingConfigMap needs overrides.source=file" }}{{ end -}}
{{- end -}}
{{- with .Values.regions -}}
{{- if .name -}}
{{- if not (hasKey .addresses .name) }}{{ fail (printf "regions.addresses has no %s, which is regions.name: list all regions, this one too" .name) }}{{ end -}}
{{- if lt (len .addresses) 2 }}{{ fail "regions.addresses has only one region: list the others too" }}{{ end -}}
{{- if not .existingSecret }}{{ fail "regions.name needs regions.existingSecret: regions know each other by their certificates" }}{{ end -}}
{{- else if or .addresses .existingSecret }}{{ fail "regions.addresses and regions.existingSecret need regions.name" }}{{ end -}}
{{- end -}}
{{- $own := include "ratelimitd.labels" . | fromYaml -}}
{{- range $value, $labels := dict "podLabels" .Values.podLabels "serviceMonitor.labels" .Values.serviceMonitor.labels "prometheusRule.labels" .Values.prometheusRule.labels "grafanaDashboard.labels" .Values.grafanaDashboard.labels -}}
{{- range $name, $_ := $labels }}{{ if hasKey $own $name }}{{ fail (printf "%s: the chart itself sets %s, leave it out" $value $name) }}{{ end }}{{ end -}}
{{- end -}}
{{- if and .Values.tls.clientSAN (not .Values.tls.clientCertificates) }}{{ fail "tls.clientSAN needs tls.clientCertificates=true" }}{{ end -}}
{{- end -}}

{{- /* The service's environment, by name. */ -}}
{{- define "ratelimitd.env" -}}
{{- $name := include "ratelimitd.fullname" . -}}
{{- $env := dict
  "LOG_FORMAT" .Values.logging.format
  "LOG_LEVEL" .Values.logging.level
  "RATELIMITD_DRAIN_DELAY" (printf "%ds" (int .Values.stop.drainDelaySeconds))
  "RATELIMITD_STOP_TIMEOUT" (printf "%ds" (int .Values.stop.timeoutSeconds)) -}}
{{- with .Values.xds -}}
{{- if .url -}}
{{- $_ := set $env "CONFIG_TYPE" "GRPC_XDS_SOTW" -}}
{{- $_ := set $env "CONFIG_GRPC_XDS_SERVER_URL" .url -}}
{{- $_ := set $env "CONFIG_GRPC_XDS_NODE_ID" .nodeID -}}
{{- if .tls.enabled -}}
{{- $_ := set $env "CONFIG_GRPC_XDS_SERVER_USE_TLS" "true" -}}
{{- if .tls.existingSecret }}{{ $_ := set $env "CONFIG_GRPC_XDS_SERVER_TLS_CACERT" "/etc/ratelimitd/xds/ca.crt" }}{{ end -}}
{{- if .tls.clientCertificate -}}
{{- $_ := set $env "CONFIG_GRPC_XDS_CLIENT_TLS_CERT" "/etc/ratelimitd/xds/tls.crt" -}}
{{- $_ := set $env "CONFIG_GRPC_XDS_CLIENT_TLS_KEY" "/etc/ratelimitd/xds/tls.key" -}}
{{- end -}}
{{- end -}}
{{- else -}}
{{- $_ := set $env "RUNTIME_ROOT" "/data" -}}
{{- $_ := set $env "RUNTIME_APPDIRECTORY" "rules" -}}
{{- end -}}
{{- end -}}
{{- with .Values.redis -}}
{{- if .url -}}
{{- $_ := set $env "REDIS_URL" .url -}}
{{- $_ := set $env "REDIS_TYPE" .type -}}
{{- if .existingSecret }}{{ $_ := set $env "REDIS_AUTH_FILE" "/etc/ratelimitd/redis/auth" }}{{ end -}}
{{- if .tls.enabled -}}
{{- $_ := set $env "REDIS_TLS" "true" -}}
{{- if .tls.existingSecret }}{{ $_ := set $env "REDIS_TLS_CACERT" "/etc/ratelimitd/redis-tls/ca.crt" }}{{ end -}}
{{- if .tls.clientCertificate -}}
{{- $_ := set $env "REDIS_TLS_CLIENT_CERT" "/etc/ratelimitd/redis-tls/tls.crt" -}}
{{- $_ := set $env "REDIS_TLS_CLIENT_KEY" "/etc/ratelimitd/redis-tls/tls.key" -}}
{{- end -}}
{{- end -}}
{{- else -}}
{{- $_ := set $env "BACKEND_TYPE" "memory" -}}
{{- end -}}
{{- end -}}
{{- with .Values.overrides -}}
{{- if eq .source "redis" -}}
{{- $_ := set $env "RATELIMITD_OVERRIDES" "redis" -}}
{{- if .copySizeLimit }}{{ $_ := set $env "RATELIMITD_OVERRIDES_COPY" "/var/lib/ratelimitd/overrides.copy" }}{{ end -}}
{{- else if eq .source "file" -}}
{{- $_ := set $env "RATELIMITD_OVERRIDES" "/etc/ratelimitd/overrides/overrides.yaml" -}}
{{- end -}}
{{- end -}}
{{- with .Values.tls -}}
{{- if .existingSecret -}}
{{- $_ := set $env "GRPC_SERVER_USE_TLS" "true" -}}
{{- $_ := set $env "GRPC_SERVER_TLS_CERT" "/etc/ratelimitd/tls/tls.crt" -}}
{{- $_ := set $env "GRPC_SERVER_TLS_KEY" "/etc/ratelimitd/tls/tls.key" -}}
{{- if .clientCertificates }}{{ $_ := set $env "GRPC_CLIENT_TLS_CACERT" "/etc/ratelimitd/tls/ca.crt" }}{{ end -}}
{{- if .clientSAN }}{{ $_ := set $env "GRPC_CLIENT_TLS_SAN" .clientSAN }}{{ end -}}
{{- end -}}
{{- end -}}
{{- with .Values.regions -}}
{{- if .name -}}
{{- $all := list -}}
{{- range $region, $address := .addresses }}{{ $all = append $all (printf "%s=%s" $region $address) }}{{ end -}}
{{- $_ := set $env "RATELIMITD_REGION" .name -}}
{{- $_ := set $env "RATELIMITD_REGIONS" (join "," $all) -}}
{{- $_ := set $env "RATELIMITD_REGIONS_TLS_CERT" "/etc/ratelimitd/regions/tls.crt" -}}
{{- $_ := set $env "RATELIMITD_REGIONS_TLS_KEY" "/etc/ratelimitd/regions/tls.key" -}}
{{- $_ := set $env "RATELIMITD_REGIONS_TLS_CACERT" "/etc/ratelimitd/regions/ca.crt" -}}
{{- end -}}
{{- end -}}
{{- if include "ratelimitd.tokenSecret" . }}{{ $_ := set $env "RATELIMITD_ADMIN_TOKEN_FILE" "/etc/ratelimitd/admin/tokens" }}{{ end -}}
{{- if .Values.admin.expose -}}
{{- $_ := set $env "DEBUG_HOST" "0.0.0.0" -}}
{{- $_ := set $env "RATELIMITD_DEBUG_HOST_NAMES" (printf "%s,%s.%s,%s.%s.svc,*.svc.cluster.local" $name $name .Release.Namespace $name .Release.Namespace) -}}
{{- end -}}
{{- range $key, $value := mergeOverwrite $env .Values.env }}
- name: {{ $key }}
{{- if kindIs "map" $value }}
{{ toYaml $value | indent 2 }}
{{- else if and (kindIs "float64" $value) (eq (floor $value) $value) }}
  value: {{ int64 $value | quote }}
{{- else }}
  value: {{ toString $value | quote }}
{{- end }}
{{- end -}}
{{- end -}}

{{- /* What is mounted: name of the volume, directory, and source; writable, if the service writes there. */ -}}
{{- define "ratelimitd.mounts" -}}
{{- $mounts := list -}}
{{- if not .Values.xds.url -}}
{{- $mounts = append $mounts (dict "name" "rules" "path" "/data/rules" "source" (dict "configMap" (dict "name" (include "ratelimitd.rulesConfigMap" .)))) -}}
{{- end -}}
{{- with .Values.overrides -}}
{{- if and (eq .source "redis") .copySizeLimit -}}
{{- $mounts = append $mounts (dict "name" "overrides-copy" "path" "/var/lib/ratelimitd" "writable" true "source" (dict "emptyDir" (dict "sizeLimit" .copySizeLimit))) -}}
{{- else if eq .source "file" -}}
{{- $mounts = append $mounts (dict "name" "overrides" "path" "/etc/ratelimitd/overrides" "source" (dict "configMap" (dict "name" .existingConfigMap "items" (list (dict "key" .configMapKey "path" "overrides.yaml"))))) -}}
{{- end -}}
{{- end -}}
{{- with .Values.redis.existingSecret -}}
{{- $mounts = append $mounts (dict "name" "redis" "path" "/etc/ratelimitd/redis" "source" (dict "secret" (dict "secretName" . "items" (list (dict "key" $.Values.redis.secretKey "path" "auth"))))) -}}
{{- end -}}
{{- with .Values.redis.tls.existingSecret -}}
{{- $mounts = append $mounts (dict "name" "redis-tls" "path" "/etc/ratelimitd/redis-tls" "source" (dict "secret" (dict "secretName" .))) -}}
{{- end -}}
{{- with .Values.xds.tls.existingSecret -}}
{{- $mounts = append $mounts (dict "name" "xds" "path" "/etc/ratelimitd/xds" "source" (dict "secret" (dict "secretName" .))) -}}
{{- end -}}
{{- with .Values.tls.existingSecret -}}
{{- $mounts = append $mounts (dict "name" "tls" "path" "/etc/ratelimitd/tls" "source" (dict "secret" (dict "secretName" .))) -}}
{{- end -}}
{{- with .Values.regions.existingSecret -}}
{{- $mounts = append $mounts (dict "name" "regions" "path" "/etc/ratelimitd/regions" "source" (dict "secret" (dict "secretName" .))) -}}
{{- end -}}
{{- with include "ratelimitd.tokenSecret" . -}}
{{- $key := ternary $.Values.admin.secretKey "tokens" (ne $.Values.admin.existingSecret "") -}}
{{- $mounts = append $mounts (dict "name" "admin" "path" "/etc/ratelimitd/admin" "source" (dict "secret" (dict "secretName" . "items" (list (dict "key" $key "path" "tokens"))))) -}}
{{- end -}}
{{- toYaml $mounts -}}
{{- end -}}
