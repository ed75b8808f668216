{{- define "rljob.labels" -}}
{{- $own := include "rljob.selector" . | fromYaml }}
{{- $_ := set $own "app.kubernetes.io/version" .Chart.AppVersion }}
{{- $_ := set $own "app.kubernetes.io/managed-by" .Release.Service }}
{{- $_ := set $own "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version) }}
{{- merge $own .Values.commonLabels | toYaml }}
{{- end }}

{{- define "rljob.selector" -}}
app.kubernetes.io/name: rljob-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "rljob.name" -}}
{{- $name := .Values.nameOverride | default "operator" -}}
{{ .Values.fullnameOverride | default (printf "%s-%s" .Release.Name $name) | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "rljob.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "rljob.name" .) }}
{{- end }}

{{- define "rljob.image" -}}
{{- $repository := required "image.repository is empty: build the image and name it, for example --set image.repository=REGISTRY/rljob-operator" .Values.image.repository -}}
{{- with .Values.image.digest -}}
{{ $repository }}@{{ . }}
{{- else -}}
{{ $repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
{{- end }}

{{- /* Labels of the namespaces that may scrape, as JSON; nothing: none may. */ -}}
{{- define "rljob.scrapeFrom" -}}
{{- if or .Values.monitoring.podMonitors.enabled (kindIs "map" .Values.monitoring.scrapeFrom) -}}
{{ .Values.monitoring.scrapeFrom | default dict | toJson }}
{{- end }}
{{- end }}

{{- /* What every container of ours may do: nothing that it does not need. */ -}}
{{- define "rljob.containerSecurity" -}}
{{- $own := dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "capabilities" (dict "drop" (list "ALL")) }}
{{- mergeOverwrite $own .Values.securityContext | toYaml }}
{{- end }}

{{- /* With those of the values: how long a pod stays on a node that is not ready. */ -}}
{{- define "rljob.tolerations" -}}
{{- $own := list }}
{{- range $taint := list "node.kubernetes.io/not-ready" "node.kubernetes.io/unreachable" }}
{{- $seconds := int $.Values.lostNodeSeconds }}
{{- $own = append $own (dict "key" $taint "operator" "Exists" "effect" "NoExecute" "tolerationSeconds" $seconds) }}
{{- end }}
{{- concat .Values.tolerations $own | toYaml }}
{{- end }}

{{- define "rljob.podSecurity" -}}
{{- $own := dict "runAsNonRoot" true "seccompProfile" (dict "type" "RuntimeDefault") }}
{{- mergeOverwrite $own .Values.podSecurityContext | toYaml }}
{{- end }}

{{- /* Text if a part that needs the whole cluster is installed: when `enabled` is true, or if it is not set, unless the rights
are limited to namespaces. */ -}}
{{- define "rljob.isClusterPartEnabled" -}}
{{- if kindIs "bool" .enabled }}{{ if .enabled }}yes{{ end }}{{ else if not .root.Values.namespaces }}yes{{ end }}
{{- end }}

{{- define "rljob.webhook" -}}
{{ printf "%s-webhook" (.Values.fullnameOverride | default .Release.Name) | trunc 51 | trimSuffix "-" }}
{{- end }}

{{- define "rljob.webhookSelector" -}}
app.kubernetes.io/name: rljob-webhook
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "rljob.webhookLabels" -}}
{{- merge (include "rljob.webhookSelector" . | fromYaml) (include "rljob.labels" . | fromYaml) | toYaml }}
{{- end }}

{{- /* What the webhook reads to compare a job with what there is. */ -}}
{{- define "rljob.webhookSight" -}}
- apiGroups: [""]
  resources: [resourcequotas, limitranges, pods]
  verbs: [list, watch]
{{- if .Values.kueue.enabled }}
- apiGroups: [kueue.x-k8s.io]
  resources: [localqueues]
  verbs: [list, watch]
{{- end }}
{{- end }}

{{- define "rljob.webhookBinding" -}}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ .kind }}
  name: {{ .role }}
subjects:
  - kind: ServiceAccount
    name: {{ include "rljob.webhook" .root }}
    namespace: {{ .root.Release.Namespace }}
{{- end }}

{{- /* The namespaces whose jobs are reviewed: those that the operator watches, and of these the selected ones. */ -}}
{{- define "rljob.webhookNamespaces" -}}
{{- $selector := deepCopy .Values.webhook.namespaceSelector }}
{{- if .Values.namespaces }}
{{- $mine := dict "key" "kubernetes.io/metadata.name" "operator" "In" "values" .Values.namespaces }}
{{- $_ := set $selector "matchExpressions" (append ($selector.matchExpressions | default list) $mine) }}
{{- end }}
{{- toYaml $selector }}
{{- end }}
