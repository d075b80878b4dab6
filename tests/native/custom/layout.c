/* SPDX-FileCopyrightText: The pyruntime authors
 * SPDX-License-Identifier: Apache-2.0
 */
/* What a compiler makes of the structures of custom.h: the offset of each field, and the size behind the last one. */
#include "custom.h"

#define AT(field) offsetof(CustomInitializeData, field)
const size_t initialize_data[] = {
    AT(instance_name), AT(serialized_model_config), AT(serialized_model_config_size), AT(gpu_device_id),
    AT(server_parameter_cnt), AT(server_parameters), sizeof(CustomInitializeData)};
#undef AT

#define AT(field) offsetof(CustomPayload, field)
const size_t payload[] = {
    AT(batch_size), AT(input_cnt), AT(input_names), AT(input_shape_dim_cnts), AT(input_shape_dims), AT(output_cnt),
    AT(required_output_names), AT(input_context), AT(output_context), AT(error_code), sizeof(CustomPayload)};
