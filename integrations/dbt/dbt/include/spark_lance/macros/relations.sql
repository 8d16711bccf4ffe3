{# Names, schemas and the clauses of CREATE TABLE. #}

{% macro spark_lance__generate_database_name(custom_database_name=none, node=none) -%}
  {%- if custom_database_name is not none -%}
    {%- do return(custom_database_name) -%}
  {%- endif -%}
  {%- if node is not none and target.view_catalog and node.config.materialized == 'view' -%}
    {%- do return(target.view_catalog) -%}
  {%- endif -%}
  {%- do return(target.database) -%}
{%- endmacro %}


{% macro spark_lance__list_schemas(database) -%}
  {% call statement('list_schemas', fetch_result=True, auto_begin=False) %}
    show schemas in {{ adapter.quote(database | string | replace('`', '')) }}
  {% endcall %}
  {{ return(load_result('list_schemas').table) }}
{% endmacro %}


{% macro spark_lance__drop_relation(relation) -%}
  {% call statement('drop_relation', auto_begin=False) -%}
    {%- if relation.schema -%}
      drop {{ relation.type }} if exists {{ relation }}
    {%- else -%}
      drop view if exists {{ relation }}
    {%- endif -%}
  {%- endcall %}
{% endmacro %}


{# One session runs all threads, and its temporary views have no schema: their names carry it. #}
{% macro spark_lance__make_temp_relation(base_relation, suffix) %}
  {% set parts = [base_relation.database, base_relation.schema, base_relation.identifier] | select | join('__') %}
  {% set temp_relation = base_relation.incorporate(path={"identifier": parts ~ suffix}, type='view') %}
  {% do return(temp_relation.include(database=false, schema=false)) %}
{% endmacro %}


{% macro spark_lance__file_format_clause() %}
  {%- set file_format = config.get('file_format', validator=validation.any[basestring]) or 'lance' -%}
  {%- if file_format != 'lance' -%}
    {% do exceptions.raise_compiler_error(
      "file_format '" ~ file_format ~ "' is not a format of this catalog: remove file_format from the model's config"
    ) %}
  {%- endif -%}
  using lance
{%- endmacro -%}


{% macro spark_lance__location_clause() %}
  {%- if config.get('location_root') is not none -%}
    {% do exceptions.raise_compiler_error(
      "location_root is not supported: tables are below the root of the catalog. Remove location_root from the model's config"
    ) %}
  {%- endif -%}
{%- endmacro -%}


{% macro spark_lance__clustered_cols(label, required=false) %}
  {%- if config.get('clustered_by') is not none -%}
    {% do exceptions.raise_compiler_error(
      "clustered_by is not supported: add the hook post_hook=\"optimize " ~ this ~ " zorder by (column)\" in its place"
    ) %}
  {%- endif -%}
{%- endmacro -%}


{# partition_by names the partitions that insert_overwrite replaces. #}
{% macro spark_lance__partition_cols(label, required=false) %}{% endmacro %}


{% macro lance_partition_columns() %}
  {%- set columns = config.get('partition_by', validator=validation.any[list, basestring]) -%}
  {%- if columns is string -%}{%- set columns = [columns] -%}{%- endif -%}
  {{ return(columns or []) }}
{% endmacro %}


{% macro spark_lance__comment_clause() %}
  {%- if config.persist_relation_docs() and model.description -%}
    comment '{{ lance_text(model.description) }}'
  {%- endif -%}
{%- endmacro -%}


{% macro lance_text(text) -%}
  {{ return(text | replace('\\', '\\\\') | replace("'", "\\'")) }}
{%- endmacro %}


{% macro spark_lance__escape_single_quotes(expression) -%}
{{ expression | replace('\\', '\\\\') | replace("'", "\\'") }}
{%- endmacro %}


{% macro spark_lance__create_table_as(temporary, relation, compiled_code, language='sql') -%}
  {%- if language == 'python' -%}
    {{ lance_python_table(compiled_code, relation, temporary) }}
  {%- elif temporary -%}
    create or replace temporary view {{ relation }} as
    {{ compiled_code }}
  {%- else -%}
    {%- if config.get('contract').enforced -%}
      {{ get_assert_columns_equivalent(compiled_code) }}
      {%- set compiled_code = lance_checked_query(get_select_subquery(compiled_code)) -%}
    {%- endif -%}
    create or replace table {{ relation }}
    {{ lance_table_clauses() }}
    as
    {{ compiled_code }}
  {%- endif -%}
{%- endmacro -%}


{% macro lance_table_clauses() %}
    {{ file_format_clause() }}
    {{ partition_cols(label="partitioned by") }}
    {{ clustered_cols(label="clustered by") }}
    {{ location_clause() }}
    {{ comment_clause() }}
    {{ tblproperties_clause() }}
{% endmacro %}


{# A null in a NOT NULL column fails the statement that would have replaced the table. #}
{% macro lance_checked_query(query) %}
  {%- set checked = lance_not_null_columns() -%}
  {%- if not checked -%}
    {{ return(query) }}
  {%- endif -%}
  {%- set checks -%}
    select
    {%- for name in model.columns %}
      {%- set quoted = adapter.quote(name) %}
      {% if name in checked -%}
        coalesce({{ quoted }}, raise_error('column {{ lance_text(name) }} is NOT NULL, but a row has a null')) as {{ quoted }}
      {%- else -%}
        {{ quoted }}
      {%- endif -%}
      {{ ',' if not loop.last }}
    {%- endfor %}
    from ({{ query }}) as dbt_checked
  {%- endset -%}
  {{ return(checks) }}
{% endmacro %}


{% macro lance_not_null_columns() %}
  {%- set names = [] -%}
  {%- for name in model.columns -%}
    {%- for constraint in model.columns[name].constraints or [] if constraint.type == 'not_null' -%}
      {%- if name not in names -%}{%- do names.append(name) -%}{%- endif -%}
    {%- endfor -%}
  {%- endfor -%}
  {%- for constraint in model.constraints or [] if constraint.type == 'not_null' -%}
    {%- for name in constraint.columns if name not in names -%}{%- do names.append(name) -%}{%- endfor -%}
  {%- endfor -%}
  {{ return(names) }}
{% endmacro %}


{% macro spark_lance__persist_constraints(relation, model) %}
  {%- if config.get('contract').enforced -%}
    {%- set nullable = adapter.nullable_columns(relation) -%}
    {%- for name in lance_not_null_columns() if name | lower in nullable -%}
      {% do run_query("alter table " ~ relation ~ " alter column " ~ adapter.quote(name) ~ " set not null") %}
    {%- endfor -%}
  {%- endif -%}
{% endmacro %}


{% macro spark_lance__create_view_as(relation, sql) -%}
  {%- if not adapter.has_views(relation) -%}
    {% do exceptions.raise_compiler_error(
      "catalog " ~ relation.database ~ " cannot hold views in this release of Spark: add view_catalog: spark_catalog and the setting "
      ~ "spark.sql.catalogImplementation: hive to profiles.yml, or set materialized='table' or 'ephemeral' for " ~ model.name
    ) %}
  {%- endif -%}
  {{ return(spark__create_view_as(relation, sql)) }}
{%- endmacro %}


{% macro spark_lance__persist_docs(relation, model, for_relation, for_columns) -%}
  {% if relation.is_view %}
    {# CREATE VIEW has both. #}
    {{ return('') }}
  {% endif %}
  {% if for_relation and config.persist_relation_docs() and model.description %}
    {% if adapter.relation_comment(relation) != model.description %}
      {% do run_query("comment on table " ~ relation ~ " is '" ~ lance_text(model.description) ~ "'") %}
    {% endif %}
  {% endif %}
  {% if for_columns and config.persist_column_docs() and model.columns %}
    {% set existing = adapter.get_columns_in_relation(relation) | map(attribute="name") | list %}
    {% set documented = validate_doc_columns(relation, model.columns, existing) %}
    {% set changes = adapter.changed_comments(relation, documented) %}
    {% if changes %}
      {% set specs = [] %}
      {% for name, comment in changes %}
        {% do specs.append(adapter.quote(name) ~ " comment '" ~ lance_text(comment) ~ "'") %}
      {% endfor %}
      {# One statement, so one version. #}
      {% do run_query("alter table " ~ relation ~ " alter column " ~ specs | join(', ')) %}
    {% endif %}
  {% endif %}
{% endmacro %}


{% macro spark_lance__alter_relation_add_remove_columns(relation, add_columns, remove_columns) %}
  {% if remove_columns %}
    {% set names = [] %}
    {% for column in remove_columns %}{% do names.append(adapter.quote(column.name)) %}{% endfor %}
    {% do run_query("alter table " ~ relation ~ " drop columns (" ~ names | join(', ') ~ ")") %}
  {% endif %}
  {% if add_columns %}
    {% set specs = [] %}
    {% for column in add_columns %}{% do specs.append(adapter.quote(column.name) ~ ' ' ~ column.data_type) %}{% endfor %}
    {% do run_query("alter table " ~ relation ~ " add columns (" ~ specs | join(', ') ~ ")") %}
  {% endif %}
{% endmacro %}


{% macro spark_lance__alter_column_type(relation, column_name, new_column_type) -%}
  {% do run_query("alter table " ~ relation ~ " alter column " ~ adapter.quote(column_name) ~ " type " ~ new_column_type) %}
{% endmacro %}


{% macro spark_lance__create_or_replace_clone(this_relation, defer_relation) %}
  create or replace table {{ this_relation }} shallow clone {{ defer_relation }}
{% endmacro %}


{% macro spark_lance__can_clone_table() %}
  {{ return(True) }}
{% endmacro %}
